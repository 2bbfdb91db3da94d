"""Quantization in an ONNX graph: QuantizeLinear and DequantizeLinear, integers of weights and biases."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from lowbit.deploy.onnx.fold import DeployedLayer
from lowbit.deploy.onnx.graph import MARK, PRODUCTS, Graph, Node, QuantizedConstant
from lowbit.deploy.onnx.moved import (
    becomes_joined_tokens,
    is_joined,
    join_tokens,
    keep_scales_in_place,
    quantize_moved,
    reduce_in_floats,
    round_before_sums,
    unmoved,
)
from lowbit.deploy.onnx.targets import Target, activation_type, is_packed, weight_type
from lowbit.nn import DeployedOperand

_NEVER_NEGATIVE = {"Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs", "Exp", "Sqrt", "Softplus"}
# They give values of their first input, or means of them.
_OF_FIRST = {
    "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "ReduceMean", "ReduceMax", "ReduceMin",
    "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Expand", "Resize", "DequantizeLinear",
}  # fmt: skip
_OF_ALL = {"Concat", "Max", "Min", "Add", "Mul"}


def never_negative(graph: Graph, tensor: str) -> bool:
    """Whether all values of the tensor are known to be 0 or more, as they are behind a ReLU."""
    return _never_negative(graph, {o: n for n in graph.nodes for o in n.outputs}, tensor)


def _never_negative(graph: Graph, producers: dict[str, Node], tensor: str) -> bool:
    if tensor in graph.constants:
        constant = graph.constants[tensor]
        return isinstance(constant, np.ndarray) and bool((constant >= 0).all())
    node = producers.get(tensor)
    if node is None:
        return False
    if node.kind in _NEVER_NEGATIVE:
        return True
    if node.kind in _OF_FIRST:
        # Integers that are never negative come from values that are not, after rounding and clipping to 0.
        return _never_negative(graph, producers, node.inputs[0])
    if node.kind == "QuantizeLinear":
        return _never_negative(graph, producers, node.inputs[0]) or (
            graph.constants[node.inputs[2]].dtype == np.uint8 and not graph.constants[node.inputs[2]].any()
        )
    if node.kind == "Clip" and _is_of_integers(producers, node):
        return _never_negative(graph, producers, node.inputs[0])  # its bounds have the zero point in them
    if node.kind == "Clip":
        lowest = graph.constants.get(node.inputs[1])
        clipped = lowest is not None and bool(lowest >= 0)
        return clipped or _never_negative(graph, producers, node.inputs[0])
    if node.kind == "Pad":
        filled = node.attributes.get("mode", "constant") != "constant" or len(node.inputs) < 3
        return _never_negative(graph, producers, node.inputs[0]) and (
            filled or bool(graph.constants[node.inputs[2]] >= 0)
        )
    return node.kind in _OF_ALL and all(_never_negative(graph, producers, name) for name in node.inputs)


def _is_of_integers(producers: dict[str, Node], clip: Node) -> bool:
    before = producers.get(clip.inputs[0])
    return before is not None and before.kind == "QuantizeLinear"


# Marks become QuantizeLinear and DequantizeLinear; weights become integers.


_FLOAT_OPERATORS = {
    "Add", "Sub", "Mul", "Div", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Erf", "BatchNormalization",
}  # fmt: skip
_BENDING = {"HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Mish", "Softplus"}
_MERGED_ACTIVATIONS = {"Relu", "Clip"}
_CONVOLUTIONS = {"Conv", "ConvTranspose"}
_MATRIX_PRODUCTS = {"MatMul", "Gemm"}
_TYPES = {
    "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int8": np.int8, "uint8": np.uint8
}  # fmt: skip


@dataclass
class Quantized:
    """What was quantized: each layer's tensors for the file's description, and notes for people."""

    inputs: dict[str, str] = field(default_factory=dict)  # of a layer's call: the tensor of integers
    notes: list[str] = field(default_factory=list)


def quantize(
    graph: Graph,
    layers: dict[str, DeployedLayer],
    edges: dict[str, DeployedOperand],
    target: Target | None,
) -> Quantized:
    """Write, in place, every operand of a quantized layer, and every edge, as the integers of its grid.

    Layers in fp32 only lose their marks; a target of None is enough for these.
    """
    done = Quantized()
    _quantize_activations(graph, layers, edges, target, done)
    if edges:
        quantize_moved(graph)
        if target != "gpu":
            round_before_sums(graph)
            reduce_in_floats(graph)
        join_tokens(graph)
    for node in [node for node in graph.nodes if node.kind in PRODUCTS]:
        weight = graph.constants.get(node.inputs[1])
        if not isinstance(weight, QuantizedConstant):
            continue
        input_ = layers[node.layer].input
        kept = target != "gpu" and keep_scales_in_place(node, graph)
        if not kept and len(node.inputs) > 2 and input_ is not None and target != "gpu":
            _quantize_bias(node, weight, input_, graph, done, fused=bool(edges))
        node.inputs[1] = _weight(node, weight, target, graph)
    return done


def _quantize_activations(
    graph: Graph,
    layers: dict[str, DeployedLayer],
    edges: dict[str, DeployedOperand],
    target: Target | None,
    done: Quantized,
) -> None:
    made: dict[Any, tuple[str, str]] = {}  # the same integers of the same tensor are made once
    # ONNX Runtime makes an invalid graph of int8 between two other operators in the version that has 4 bits.
    in_4_bits = any(isinstance(c, QuantizedConstant) and c.bits <= 4 for c in graph.constants.values())
    nodes, graph.nodes = graph.nodes, []
    replaced: dict[str, str] = {}
    for node in nodes:
        node.inputs = [replaced.get(name, name) for name in node.inputs]
        if node.kind != MARK:
            graph.nodes.append(node)
            continue
        source, layer = node.inputs[0], node.attributes["layer"]
        is_edge = node.attributes["role"] == "edge"
        operand = edges.get(layer) if is_edge else layers[layer].input
        if operand is None:
            replaced[node.outputs[0]] = source
            continue
        grid = (operand.lowest, operand.highest, operand.signed, operand.scale.tobytes())
        if (source, grid) not in made:
            readers = {other.kind for other in nodes if node.outputs[0] in other.inputs}
            how = {"direct": readers <= set(PRODUCTS), "edges": bool(edges)}
            joined = target != "gpu" and is_joined(source, graph)
            how["joined"] = joined and bool(readers & _CONVOLUTIONS)
            if joined and readers & _MATRIX_PRODUCTS:
                source = unmoved(source, graph)
            how["bent"] = is_edge and not in_4_bits and readers <= _BENDING
            name = f"{layer}.output" if is_edge else f"{layer}.input"
            pair = _quantize_one(source, name, operand, target, graph, **how)
            made[source, grid] = made[pair[1], grid] = pair  # what is on the grid stays there
        integers, replaced[node.outputs[0]] = made[source, grid]
        if is_edge:
            continue
        name, count = layer, 1
        while name in done.inputs:
            count += 1
            name = f"{layer}:{count}"
        done.inputs[name] = integers
    graph.outputs = [replaced.get(name, name) for name in graph.outputs]


def _quantize_one(
    source: str,
    name: str,
    operand: DeployedOperand,
    target: Target,
    graph: Graph,
    *,
    direct: bool,
    edges: bool,
    bent: bool,
    joined: bool,
) -> tuple[str, str]:
    """QuantizeLinear, Clip, DequantizeLinear; the names of the integers and of their values.

    The type holds 8 bits. Bounds inside of it are clipped to behind the rounding, where engines still merge
    the rounding into the product before it; TensorRT wants nothing between the two, so there it is before.
    """
    if edges:
        source, operand = _without_clip(source, operand, graph)
    positive = never_negative(graph, source) or operand.lowest >= 0
    kind_name, zero = activation_type(
        operand, target, positive=positive, layer=name, direct=direct, edges=edges, bent=bent, joined=joined
    )
    kind, scale, shape = _TYPES[kind_name], np.float32(operand.scale), graph.shapes[source]
    lowest, highest = operand.lowest + zero, operand.highest + zero
    lowest = lowest if lowest > np.iinfo(kind).min and not positive else None
    highest = highest if highest < np.iinfo(kind).max else None
    parts = [graph.constant(scale, f"{name}.scale"), graph.constant(kind(zero), f"{name}.zero")]
    if target == "gpu":
        source = _clip(source, lowest, highest, scale, graph)
    integers = graph.add("QuantizeLinear", [source, *parts], shape=shape)
    if target != "gpu":
        integers = _clip(integers, lowest, highest, kind(1), graph)
    integers = graph.rename(integers, name)
    return integers, graph.add("DequantizeLinear", [integers, *parts], shape=shape)


def _without_clip(source: str, operand: DeployedOperand, graph: Graph) -> tuple[str, DeployedOperand]:
    """A Clip (ReLU6) that is rounded next becomes bounds of the integers: the same, and no operator more."""
    node = graph.producer(source)
    if node is None or node.kind != "Clip" or len(graph.consumers(source)) or source in graph.outputs:
        return source, operand
    bounds = [graph.constants.get(name) for name in node.inputs[1:]]
    if len(bounds) != 2 or not all(isinstance(bound, np.ndarray) for bound in bounds):
        return source, operand
    lowest, highest = (int(np.rint(np.float32(bound) / np.float32(operand.scale))) for bound in bounds)
    lowest, highest = max(lowest, operand.lowest), min(highest, operand.highest)
    graph.nodes = [other for other in graph.nodes if other is not node]
    return node.inputs[0], replace(operand, lowest=lowest, highest=highest)


def _clip(x: str, lowest: int | None, highest: int | None, unit: np.generic, graph: Graph) -> str:
    """Clip to bounds given in units; a bound that is None holds anyway."""
    if lowest is None and highest is None:
        return x
    bounds = [""] if lowest is None else [graph.constant(unit.dtype.type(lowest * unit))]
    bounds += [] if highest is None else [graph.constant(unit.dtype.type(highest * unit))]
    return graph.add("Clip", [x, *bounds], shape=graph.shapes[x])


def _weight(node: Node, weight: QuantizedConstant, target: Target, graph: Graph) -> str:
    name, zero = weight_type(weight, target)
    # OpenVINO 2026.4 takes no account of the zero point there.
    if zero and node.kind == "ConvTranspose" and _is_without_zero_point(node.inputs[0], graph):
        values = weight.integers.astype(np.float32) * weight.scale.astype(np.float32)
        return graph.constant(values, f"{node.layer}.weight.values")
    kind = _TYPES[name]
    integers = (weight.integers + zero).astype(kind)
    axis = next((axis for axis, size in enumerate(weight.scale.shape) if size > 1), None)
    scale = weight.scale.reshape([] if axis is None else [-1]).astype(np.float32)
    parts = [
        graph.constant(integers, f"{node.layer}.weight.integers"),
        graph.constant(scale, f"{node.layer}.weight.scale"),
        graph.constant(np.full(scale.shape, zero).astype(kind), f"{node.layer}.weight.zero"),
    ]
    return _insert(node, parts, axis, list(weight.shape), graph)


def _is_without_zero_point(tensor: str, graph: Graph) -> bool:
    """Whether these are values of integers whose zero point is 0."""
    node = graph.producer(tensor)
    return node is not None and node.kind == "DequantizeLinear" and not graph.constants[node.inputs[2]].any()


def _quantize_bias(
    node: Node,
    weight: QuantizedConstant,
    input_: DeployedOperand,
    graph: Graph,
    done: Quantized,
    *,
    fused: bool,
) -> None:
    """The bias as int32, exactly, or else on the grid of the product's sums.

    Engines add a bias to sums of integers, so it has to be on their grid, whatever scale the file gives:
    ONNX Runtime in every 8-bit Gemm, and before 1.23 or so in every convolution whose output is rounded
    next. A convolution's bias is therefore exact, and added behind it there: half a step of the sums, the
    same in a whole channel, would move integers in the layers that follow. A Gemm has the sums' grid, and so
    has everything where products and the rounding of their outputs are one operator (`fused`).
    """
    bias = graph.constants[node.inputs[2]].astype(np.float64)
    step = _own_steps(bias)
    packed = is_packed(weight)
    fused = fused and not packed and not _is_used_in_floats(node, graph)
    if fused or (not packed and node.kind == "MatMul"):
        step = np.float32(input_.scale) * _per_output(weight.scale, node, len(bias))
    integers = np.rint(bias / step)
    if (np.abs(integers) > np.iinfo(np.int32).max).any():
        done.notes.append(f"{node.layer}: its bias stays fp32, since int32 cannot hold it")
        return
    parts = [
        graph.constant(integers.astype(np.int32), f"{node.layer}.bias.integers"),
        graph.constant(step, f"{node.layer}.bias.scale"),
        graph.constant(np.zeros(len(bias), np.int32), f"{node.layer}.bias.zero"),
    ]
    node.inputs[2] = _insert(node, parts, 0, [len(bias)], graph)
    apart = not packed and not fused and not _is_used_in_floats(node, graph)
    if node.kind != "MatMul" and (apart or becomes_joined_tokens(node.outputs[0], graph)):
        _add_behind(node, graph)


def _own_steps(bias: np.ndarray) -> np.ndarray:
    """For each fp32 number a power of two of which it is a multiple, and one that int32 holds."""
    _, exponent = np.frexp(np.where(bias == 0, 1, bias))
    return np.ldexp(np.float32(1), np.maximum(exponent - 24, -126)).astype(np.float32)


def _add_behind(node: Node, graph: Graph) -> None:
    """Take the bias out of a convolution and add it to its output."""
    output, shape = node.outputs[0], graph.shapes[node.outputs[0]]
    product, turned = graph.new_name("/product"), graph.new_name("/bias")
    sizes = graph.constant(np.array([-1, 1, 1], np.int64))
    graph.shapes |= {product: shape, turned: [shape[1], 1, 1]}
    place = next(i for i, other in enumerate(graph.nodes) if other is node)
    graph.nodes[place + 1 : place + 1] = [
        Node("Reshape", [node.inputs.pop(), sizes], [turned]),
        Node("Add", [product, turned], [output]),
    ]
    node.outputs = [product]


def _is_used_in_floats(node: Node, graph: Graph) -> bool:
    """Whether somebody computes with the product's output before it is rounded: then it is a float."""
    consumers = graph.consumers(node.outputs[0])
    if len(consumers) == 1 and consumers[0].kind in _MERGED_ACTIVATIONS:
        return _is_used_in_floats(consumers[0], graph)
    return any(consumer.kind in _FLOAT_OPERATORS for consumer in consumers)


def _per_output(scale: np.ndarray, node: Node, channels: int) -> np.ndarray:
    """The weight's scale, one number per output channel."""
    flat = scale.reshape([-1])
    if flat.size == 1 or node.kind != "ConvTranspose":
        return np.broadcast_to(flat, [channels]).astype(np.float32)
    # [in, out / groups, …]: groups share their scales, or each has one channel and one scale.
    return np.tile(flat, channels // flat.size) if scale.shape[1] > 1 else _of_groups(flat, channels)


def _of_groups(flat: np.ndarray, channels: int) -> np.ndarray:
    return flat.reshape([channels, -1])[:, 0]


def _insert(node: Node, parts: list[str], axis: int | None, shape: list[int], graph: Graph) -> str:
    """A DequantizeLinear in front of a node."""
    value = graph.new_name("/dequantizelinear")
    attributes = {} if axis is None else {"axis": axis}
    made = Node("DequantizeLinear", parts, [value], attributes)
    graph.nodes.insert(next(i for i, other in enumerate(graph.nodes) if other is node), made)
    graph.shapes[value] = shape
    return value
