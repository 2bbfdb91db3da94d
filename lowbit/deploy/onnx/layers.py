"""What the model's quantized layers are in the file: their weights, biases and inputs, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import paddle
from paddle import nn

from lowbit.deploy.onnx.graph import Graph, QuantizedConstant
from lowbit.deploy.onnx.trace import layer_names
from lowbit.layers import DeployedOperand, Quantizer, deployed_input, deployed_weight, eval_mode, is_quantized


@dataclass(frozen=True, kw_only=True)
class DeployedLayer:
    """A quantized layer; `input` is None and `weight` floats where its plan leaves them in fp32."""

    weight: QuantizedConstant | np.ndarray
    bias: np.ndarray | None
    input: DeployedOperand | None


def deployed_layers(model: nn.Layer, *, quantized: bool = True) -> dict[str, DeployedLayer]:
    """The model's quantized layers by name; without `quantized`, what they would be in fp32."""
    found = {}
    with eval_mode(model):
        for name, layer in layer_names(model).items():
            if is_quantized(layer):
                found[name] = _deployed(layer) if quantized else _in_fp32(layer)
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
