"""What is known of each layer in the graph, and folding batch norm into it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import nn

from lowbit.deploy.onnx.graph import MARK, PRODUCTS, Graph, Node, QuantizedConstant
from lowbit.deploy.onnx.trace import layer_names
from lowbit.nn import DeployedOperand, Quantizer, deployed_input, deployed_weight, eval_mode, is_quantized
from lowbit.nn.activation_matmul import SIDES, QuantizedMatmul
from lowbit.nn.deployed_form import deployed_operand


@dataclass(frozen=True, kw_only=True)
class DeployedLayer:
    """A quantized layer; `input` is None and `weight` floats where its plan leaves them in fp32."""

    weight: QuantizedConstant | np.ndarray
    bias: np.ndarray | None
    input: DeployedOperand | None


def deployed_layers(
    model: nn.Layer, called: Collection[str] | None = None, *, quantized: bool = True
) -> dict[str, DeployedLayer]:
    """The quantized layers, all or those `called`; without `quantized`, what they would be in fp32."""
    found = {}
    with eval_mode(model):
        for name, layer in layer_names(model).items():
            if is_quantized(layer) and (called is None or name in called):
                found[name] = _deployed(layer) if quantized else _in_fp32(layer)
        for name, layer in model.named_sublayers():
            if isinstance(
                layer, QuantizedMatmul
            ):  # each operand is a layer of its own here, without a weight
                for side in SIDES:
                    operand = deployed_operand(getattr(layer, f"{side}_quantizer")) if quantized else None
                    found[f"{name}.{side}"] = DeployedLayer(weight=np.zeros(0), bias=None, input=operand)
    return found


def attach_layers(graph: Graph, layers: dict[str, DeployedLayer]) -> None:
    """Give the products of quantized layers their weights and biases, and their layers' names."""
    for node in graph.nodes:
        name = graph.weights_of.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if name is None:
            continue
        layer, node.layer = layers[name], name
        node.inputs[1] = graph.constant(layer.weight, f"{name}.weight")
        if layer.bias is not None:
            node.inputs.append(graph.constant(layer.bias, f"{name}.bias"))


def _deployed(layer: nn.Layer) -> DeployedLayer:
    plain = _in_fp32(layer)
    weight, input_ = plain.weight, None
    if not _is_full(layer.weight_quantizer):
        integers, operand = deployed_weight(layer)
        scale = operand.scale.reshape([1] * (integers.ndim - operand.scale.ndim) + list(operand.scale.shape))
        weight = QuantizedConstant(integers, scale, operand.bits, operand.signed)
    if not _is_full(layer.input_quantizer):
        input_ = deployed_input(layer)
    return DeployedLayer(weight=weight, bias=plain.bias, input=input_)


def _in_fp32(layer: nn.Layer) -> DeployedLayer:
    with paddle.no_grad():
        weight, bias = layer.effective_weight_and_bias()
    return DeployedLayer(weight=weight.numpy(), bias=None if bias is None else bias.numpy(), input=None)


def _is_full(quantizer: nn.Layer) -> bool:
    return isinstance(quantizer, Quantizer) and quantizer.spec.grid.name == "full"


# Folding biases and batch norms into the products before them; quantized weights keep their integers.


_BIAS_BITS = 22  # how finely the bias of a channel whose weights are all 0 is kept


def fold(graph: Graph) -> list[str]:
    """Fold what can be folded, in place; returns a note for every batch norm after a product that cannot."""
    _fold_additions(graph)
    _take_output_marks(graph)
    return _fold_batch_norms(graph)


def _fold_additions(graph: Graph) -> None:
    for node in [node for node in graph.nodes if node.kind in PRODUCTS]:
        after = _only_consumer(node, graph)
        if after is None or after.kind != "Add" or not _is_weight(node.inputs[1], graph):
            continue
        other = next(name for name in after.inputs if name != node.outputs[0])
        bias = _per_channel(graph.constants.get(other), node, graph)
        if bias is not None:
            _set_bias(node, _bias(node, graph) + bias, graph)
            graph.remove(after, instead=node.outputs[0])


def _take_output_marks(graph: Graph) -> None:
    """Note which tensor is the output of which layer; a layer's second call is `name:2`."""
    for mark in [node for node in graph.nodes if node.kind == MARK and node.attributes["role"] == "output"]:
        source, layer = mark.inputs[0], mark.attributes["layer"]
        name, count = layer, 1
        while name in graph.layer_outputs:
            count += 1
            name = f"{layer}:{count}"
        graph.layer_outputs[name] = source
        producer = graph.producer(source)
        if producer is not None and producer.kind in PRODUCTS and not producer.layer:
            producer.layer = layer
        graph.remove(mark, instead=source)


def _fold_batch_norms(graph: Graph) -> list[str]:
    notes = []
    for node in [node for node in graph.nodes if node.kind in PRODUCTS]:
        after = _only_consumer(node, graph)
        if after is None or after.kind != "BatchNormalization" or not _is_weight(node.inputs[1], graph):
            continue
        if node.kind == "MatMul" and len(graph.shapes[node.outputs[0]]) != 2:
            continue  # it normalizes another axis
        gain, shift, mean, variance = (graph.constants[name].astype(np.float64) for name in after.inputs[1:])
        gain = gain / np.sqrt(variance + after.attributes["epsilon"])
        shift = shift + (_bias(node, graph) - mean) * gain
        weight, reason = _scaled(graph.constants[node.inputs[1]], gain, shift, node)
        if weight is None:
            notes.append(f"{node.layer or node.outputs[0]}: its batch norm stays an operator: {reason}")
            continue
        node.inputs[1] = graph.constant(weight, node.inputs[1])
        _set_bias(node, shift, graph)
        graph.remove(after, instead=node.outputs[0])
    return notes


def _scaled(
    weight: np.ndarray | QuantizedConstant, gain: np.ndarray, shift: np.ndarray, node: Node
) -> tuple[np.ndarray | QuantizedConstant | None, str]:
    """The weight with every output channel times its gain, or why that cannot be written."""
    along = _along(gain, weight.shape, node)
    if not isinstance(weight, QuantizedConstant):
        return (weight * along).astype(np.float32), ""
    integers = np.where(along < 0, -weight.integers, weight.integers) * (along != 0)
    lowest, highest = storage_bounds(weight.bits, weight.signed)
    if integers.min() < lowest or integers.max() > highest:
        return None, f"a negative gain would make {-lowest} of {lowest}, which its type cannot hold"
    scale = weight.scale.astype(np.float64) * np.abs(along)
    # Where nothing is left of the weights the scale is free: fine enough for the bias, which is kept with it.
    free = np.maximum(np.abs(_along(shift, weight.shape, node)) * 2.0**-_BIAS_BITS, np.finfo(np.float32).tiny)
    scale = np.where(along == 0, np.where(_along(shift, weight.shape, node) == 0, 1.0, free), scale)
    scale = _collapsed(scale.astype(np.float32))
    if sum(size > 1 for size in scale.shape) > 1:
        return None, "its gains differ along another axis than the weight's scales"
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return None, "its gains times the weight's scales are no longer fp32 numbers"
    return QuantizedConstant(integers.astype(np.int16), scale, weight.bits, weight.signed), ""


def storage_bounds(bits: int, signed: bool) -> tuple[int, int]:
    """The integers that the file's type for so many bits holds: of 4 bits up to 4, else of 8.

    >>> storage_bounds(3, True)
    (-8, 7)
    """
    width = 4 if bits <= 4 else 8
    return (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)


def _along(per_channel: np.ndarray, shape: tuple[int, ...], node: Node) -> np.ndarray:
    """A number per output channel in the place where the weight has that channel."""
    if node.kind == "Conv":
        return per_channel.reshape([-1, 1, 1, 1])
    if node.kind == "MatMul":
        return per_channel.reshape([1, -1])
    groups = node.attributes["group"]  # the weight is [in, out / groups, …]
    return np.repeat(per_channel.reshape([groups, -1]), shape[0] // groups, axis=0)[:, :, None, None]


def _collapsed(scale: np.ndarray) -> np.ndarray:
    """The scale with one number along each axis on which it does not change."""
    for axis in range(scale.ndim):
        first = scale.take([0], axis)
        scale = first if (scale == first).all() else scale
    return scale


def _only_consumer(node: Node, graph: Graph) -> Node | None:
    output = node.outputs[0]
    consumers = graph.consumers(output)
    if len(consumers) != 1 or output in graph.outputs or consumers[0].inputs.count(output) != 1:
        return None
    return consumers[0]


def _is_weight(name: str, graph: Graph) -> bool:
    return name in graph.constants


def _channels(node: Node, graph: Graph) -> int:
    shape = graph.constants[node.inputs[1]].shape
    return {"Conv": shape[0], "MatMul": shape[-1]}.get(node.kind) or shape[1] * node.attributes["group"]


def _bias(node: Node, graph: Graph) -> np.ndarray:
    if len(node.inputs) > 2:
        return graph.constants[node.inputs[2]].astype(np.float64)
    return np.zeros(_channels(node, graph))


def _set_bias(node: Node, bias: np.ndarray, graph: Graph) -> None:
    hint = f"{node.layer}.bias" if node.layer else "/bias"
    node.inputs[2:] = [graph.constant(bias.astype(np.float32), hint)]


def _per_channel(constant: np.ndarray | None, node: Node, graph: Graph) -> np.ndarray | None:
    """An added constant as one number per output channel; None where it is something else."""
    if not isinstance(constant, np.ndarray) or constant.dtype != np.float32:
        return None
    rank, channels = len(graph.shapes[node.outputs[0]]), _channels(node, graph)
    axis = rank - 1 if node.kind == "MatMul" else 1
    if constant.ndim > rank:
        return None
    shape = [1] * (rank - constant.ndim) + list(constant.shape)
    if any(size != 1 for i, size in enumerate(shape) if i != axis) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(constant.reshape([-1]), [channels])
