"""Marks become QuantizeLinear and DequantizeLinear, and weights the integers that were trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from lowbit.deploy.onnx.bounds import is_at_least
from lowbit.deploy.onnx.graph import MARK, PRODUCTS, Graph, Node, QuantizedConstant
from lowbit.deploy.onnx.layers import DeployedLayer
from lowbit.deploy.onnx.target import Target, activation_type, weight_type
from lowbit.layers import DeployedOperand

_INT32 = np.iinfo(np.int32)
_FINER = 12  # bits by which the bias of a 4-bit weight is finer than its product's step
_TYPES = {
    "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int8": np.int8, "uint8": np.uint8
}  # fmt: skip


@dataclass
class Quantized:
    """What was quantized: each layer's tensors for the file's description, and notes for people."""

    inputs: dict[str, str] = field(default_factory=dict)  # of a layer's call: the tensor of integers
    notes: list[str] = field(default_factory=list)


def quantize(graph: Graph, layers: dict[str, DeployedLayer], target: Target) -> Quantized:
    """Write, in place, every operand of a quantized layer as the integers of its grid."""
    done = Quantized()
    _quantize_inputs(graph, layers, target, done)
    for node in [node for node in graph.nodes if node.kind in PRODUCTS]:
        weight = graph.constants.get(node.inputs[1])
        if not isinstance(weight, QuantizedConstant):
            continue
        input_ = layers[node.layer].input
        if len(node.inputs) > 2 and input_ is not None and target != "gpu":
            _quantize_bias(node, weight, input_, graph, done)
        node.inputs[1] = _weight(node, weight, target, graph)
    return done


def _quantize_inputs(graph: Graph, layers: dict[str, DeployedLayer], target: Target, done: Quantized) -> None:
    made: dict[Any, tuple[str, str]] = {}  # the same integers of the same tensor are made once
    nodes, graph.nodes = graph.nodes, []
    replaced: dict[str, str] = {}
    for node in nodes:
        node.inputs = [replaced.get(name, name) for name in node.inputs]
        if node.kind != MARK:
            graph.nodes.append(node)
            continue
        source, layer = node.inputs[0], node.attributes["layer"]
        operand = layers[layer].input
        if operand is None:
            replaced[node.outputs[0]] = source
            continue
        key = (source, operand.lowest, operand.highest, operand.signed, operand.scale.tobytes())
        if key not in made:
            made[key] = _quantize_input(source, layer, operand, target, graph)
        integers, replaced[node.outputs[0]] = made[key]
        name, count = layer, 1
        while name in done.inputs:
            count += 1
            name = f"{layer}:{count}"
        done.inputs[name] = integers
    graph.output = replaced.get(graph.output, graph.output)


def _quantize_input(
    source: str, layer: str, operand: DeployedOperand, target: Target, graph: Graph
) -> tuple[str, str]:
    """(Clip,) QuantizeLinear, DequantizeLinear; the names of the integers and of their values."""
    kind = _TYPES[activation_type(operand, target, layer)]
    scale, shape = np.float32(operand.scale), graph.shapes[source]
    lowest, highest = operand.lowest * scale, operand.highest * scale
    low = operand.lowest > np.iinfo(kind).min and not is_at_least(graph, source, lowest)
    high = operand.highest < np.iinfo(kind).max
    if low or high:
        bounds = [graph.constant(lowest) if low else "", *([graph.constant(highest)] if high else [])]
        source = graph.add("Clip", [source, *bounds], shape=shape)
    parts = [graph.constant(scale, f"{layer}.input.scale"), graph.constant(kind(0), f"{layer}.input.zero")]
    integers = graph.add("QuantizeLinear", [source, *parts], shape=shape)
    integers = graph.rename(integers, f"{layer}.input")
    return integers, graph.add("DequantizeLinear", [integers, *parts], shape=shape)


def _weight(node: Node, weight: QuantizedConstant, target: Target, graph: Graph) -> str:
    name, zero = weight_type(weight, target)
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


def _quantize_bias(
    node: Node, weight: QuantizedConstant, input_: DeployedOperand, graph: Graph, done: Quantized
) -> None:
    """The bias as int32 on the grid of the product's sums, which is where engines with integers add it.

    4-bit weights are multiplied in floats, also by engines that know them; there a step of the sums is a
    visible part of the next layer's, so the bias has a finer one.
    """
    bias = graph.constants[node.inputs[2]].astype(np.float64)
    step = np.float32(input_.scale) * _per_output(weight.scale, node, len(bias))
    if weight.bits <= 4:
        step = step * np.float32(2.0**-_FINER)
    integers = np.rint(bias / step)
    if (np.abs(integers) > _INT32.max).any() or not (step > 0).all():
        done.notes.append(f"{node.layer}: its bias stays fp32, since int32 cannot hold it")
        return
    parts = [
        graph.constant(integers.astype(np.int32), f"{node.layer}.bias.integers"),
        graph.constant(step, f"{node.layer}.bias.scale"),
        graph.constant(np.zeros(len(bias), np.int32), f"{node.layer}.bias.zero"),
    ]
    node.inputs[2] = _insert(node, parts, 0, [len(bias)], graph)


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
    value = graph.new_name("dequantizelinear")
    attributes = {} if axis is None else {"axis": axis}
    made = Node("DequantizeLinear", parts, [value], attributes)
    graph.nodes.insert(next(i for i, other in enumerate(graph.nodes) if other is node), made)
    graph.shapes[value] = shape
    return value
