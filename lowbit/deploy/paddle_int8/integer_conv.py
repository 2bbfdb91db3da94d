"""Convolutions in int8: their bounds, weights and scales."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from paddle import nn

from lowbit.deploy.paddle_int8.program import Attribute, Op, Program
from lowbit.errors import LowbitError
from lowbit.nn import DeployedOperand, deployed_input, deployed_weight

LOWEST_HARD_SWISH = -0.375
_OF_OPS = {"relu": (0.0, math.inf), "sigmoid": (0.0, 1.0), "hard_sigmoid": (0.0, 1.0)}
_OF_OPS |= {"hard_swish": (LOWEST_HARD_SWISH, math.inf)}
# They give values of their input, means of them, or zeros.
_OF_INPUT = {"pool2d", "reshape2", "flatten_contiguous_range", "transpose2", "squeeze2", "dropout"}

Bounds = tuple[float, float]


def value_bounds(nodes: list[Node]) -> dict[str, Bounds]:
    """The values that are known to have bounds: (lowest, highest), by name.

    A bound that holds anyway need not be clipped to.
    """
    known: dict[str, Bounds] = {}
    for node in nodes:
        if isinstance(node, IntegerConv):
            if (bounds := _of_activation(node)) is not None:
                known[node.output] = bounds
        elif node.kind in _OF_OPS:
            known[node.outputs["Out"][0]] = _OF_OPS[node.kind]
        elif node.kind in _OF_INPUT and node.inputs["X"][0] in known:
            lowest, highest = known[node.inputs["X"][0]]
            known[node.outputs["Out"][0]] = min(lowest, 0.0), max(highest, 0.0)
    return known


def _of_activation(conv: IntegerConv) -> Bounds | None:
    activation = conv.activation
    if activation.name in ("relu6", "clip"):
        return activation.alpha, activation.beta
    return _OF_OPS.get(activation.name)


# ----------------------------------------------------------------------------------------------------------
# The convolution of integers, before it is written: what it reads, its scales, what is merged into it.


_GEOMETRY = ("strides", "paddings", "padding_algorithm", "dilations", "groups")


@dataclass
class Activation:
    """A function that oneDNN applies before it writes; `clip` and `relu6` are bounded by alpha and beta."""

    name: str = ""
    alpha: float = 0.0
    beta: float = 0.0


@dataclass
class IntegerConv:
    """out = activation(sums * (scale of the input * scale) + bias + residual), perhaps on the next grid.

    `scale` and `bias` have a number per output channel, in fp64 until they are written: a batch norm is
    merged into them, never into the integers.
    """

    name: str
    input: str
    operand: DeployedOperand  # of the input
    integers: np.ndarray  # int8 [out, in / groups, kernel height, kernel width]
    scale: np.ndarray  # of the weight
    bias: np.ndarray
    output: str
    geometry: dict[str, Attribute]
    residual: str | None = None
    activation: Activation = field(default_factory=Activation)
    output_operand: DeployedOperand | None = None  # None: floats

    @property
    def reads(self) -> list[str]:
        return [self.input] if self.residual is None else [self.input, self.residual]

    @property
    def writes(self) -> list[str]:
        return [self.output]


Node = Op | IntegerConv


def integer_parts(layer: nn.Layer) -> dict[str, Any]:
    """The layer's operand, integers, scale and bias; a LowbitError where int8 kernels cannot have them."""
    name = layer.weight_quantizer.layer_name
    if isinstance(layer, nn.Conv2DTranspose):
        raise LowbitError(f'layer "{name}": Paddle has no transposed convolution of integers')
    if isinstance(layer, nn.Conv2D) and layer._data_format != "NCHW":
        raise LowbitError(f'layer "{name}": Paddle has convolutions of integers for NCHW only')
    integers, weight = deployed_weight(layer)
    operand = deployed_input(layer)
    if integers.min() < -128 or integers.max() > 127:
        raise LowbitError(f'layer "{name}": its weight is unsigned, and Paddle multiplies with int8')
    outputs = integers.shape[1] if isinstance(layer, nn.Linear) else integers.shape[0]
    if weight.scale.size not in (1, outputs):
        raise LowbitError(f'layer "{name}": its weight has scales that the sum runs over')
    if isinstance(layer, nn.Linear):
        integers = integers.T[:, :, None, None]
    _, bias = layer.effective_weight_and_bias()
    return {
        "name": name,
        "operand": operand,
        "integers": np.ascontiguousarray(integers, dtype=np.int8),
        "scale": np.broadcast_to(weight.scale.reshape(-1).astype(np.float64), [outputs]).copy(),
        "bias": np.zeros(outputs) if bias is None else bias.numpy().astype(np.float64),
    }


def place_integer_convs(program: Program, layers: dict[str, nn.Layer]) -> list[Node]:
    """The program's operators, with the products of `layers` (by the names of their weights) in integers."""
    nodes: list[Node] = []
    for op in program.ops:
        weights = [name for role in ("Filter", "Y") for name in op.inputs.get(role, []) if name in layers]
        if not weights:
            nodes.append(op)
            continue
        parts = integer_parts(layers[weights[0]])
        if op.kind in ("conv2d", "depthwise_conv2d"):
            geometry = {name: op.attribute(name) for name in _GEOMETRY}
            nodes.append(
                IntegerConv(
                    input=op.inputs["Input"][0], output=op.outputs["Output"][0], geometry=geometry, **parts
                )
            )
        else:
            nodes += _linear(program, op, parts)
    return nodes


def _linear(program: Program, op: Op, parts: dict[str, Any]) -> list[Node]:
    """A matrix product as a convolution of 1x1 images: Paddle's own int8 product takes the wrong scales."""
    name, (features, inputs) = parts["name"], parts["integers"].shape[:2]
    image = program.new_variable(f"{name}.image", [-1, inputs, 1, 1])
    product = program.new_variable(f"{name}.product", [-1, features, 1, 1])
    output = op.outputs["Out"][0]
    shape = program.variables[output].shape
    conv = IntegerConv(
        input=image,
        output=product,
        geometry={
            "strides": [1, 1],
            "paddings": [0, 0],
            "padding_algorithm": "EXPLICIT",
            "dilations": [1, 1],
            "groups": 1,
        },
        **parts,
    )
    return [
        _reshape(program, op.inputs["X"][0], image, [-1, inputs, 1, 1]),
        conv,
        _reshape(program, product, output, [-1, *shape[1:]]),
    ]


def _reshape(program: Program, source: str, target: str, shape: list[int]) -> Op:
    unused = program.new_variable(f"{target}.shape", [0, *program.variables[source].shape])
    return Op("reshape2", {"X": [source]}, {"Out": [target], "XShape": [unused]}, {"shape": shape})
