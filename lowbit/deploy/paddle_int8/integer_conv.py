"""Convolutions in int8: their bounds, weights and scales."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from paddle import nn

from lowbit.deploy.paddle_int8.program import Attribute, Program, ProgramOp
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


# IntegerConv: operands, scales, and what is merged into the convolution.


_GEOMETRY = ("strides", "paddings", "padding_algorithm", "dilations", "groups")


@dataclass
class FusedActivation:
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
    activation: FusedActivation = field(default_factory=FusedActivation)
    output_operand: DeployedOperand | None = None  # None: floats

    @property
    def reads(self) -> list[str]:
        return [self.input] if self.residual is None else [self.input, self.residual]

    @property
    def writes(self) -> list[str]:
        return [self.output]


Node = ProgramOp | IntegerConv


def integer_parts(layer: nn.Layer) -> dict[str, Any]:
    """The layer's operand, integers, scale and bias; a LowbitError where int8 kernels cannot have them."""
    name = layer.weight_quantizer.layer_name
    if isinstance(layer, nn.Conv2DTranspose):
        raise LowbitError(f'layer "{name}": Paddle has no transposed convolution of integers')
    if isinstance(layer, nn.Conv2D) and layer._data_format != "NCHW":
        raise LowbitError(f'layer "{name}": Paddle has convolutions of integers for NCHW only')
    integers, weight = deployed_weight(layer)
    operand = deployed_input(layer)
    if operand.lowest < 0 and operand.highest > 127:
        raise LowbitError(
            f'layer "{name}": its input has a zero point of 8 bits (sign asymmetric), which Paddle has not'
        )
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


def _linear(program: Program, op: ProgramOp, parts: dict[str, Any]) -> list[Node]:
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


def _reshape(program: Program, source: str, target: str, shape: list[int]) -> ProgramOp:
    unused = program.new_variable(f"{target}.shape", [0, *program.variables[source].shape])
    return ProgramOp("reshape2", {"X": [source]}, {"Out": [target], "XShape": [unused]}, {"shape": shape})


_ONEDNN = {"use_mkldnn": True}
_FLOAT32, _INT8 = 5, 21  # Paddle's numbers of element types, in `cast`


def emit(program: Program, nodes: list[Node]) -> Program:
    """The program with every IntegerConv as operators: its weight is int8, dequantized when it is loaded.

    Paddle's kernel wants a float weight and the scale that makes integers of it again. The integers come back
    as they were: their scale is undone to within a rounding error of a float, far below half a step.
    """
    ops: list[ProgramOp] = []
    integers: dict[tuple, str] = {
        (conv.output, *_key(conv.output_operand)): conv.output
        for conv in nodes
        if isinstance(conv, IntegerConv) and conv.output_operand is not None
    }
    bounds = value_bounds(nodes)
    for node in nodes:
        if isinstance(node, ProgramOp):
            ops.append(node)
            continue
        key = (node.input, *_key(node.operand))
        if key not in integers:
            written, integers[key] = _quantize(program, node, bounds.get(node.input, (-math.inf, math.inf)))
            ops += written
        _divisible(node)
        weight = _weight(program, node)
        ops += [*weight, _conv(program, node, integers[key], weight[-1].outputs["Out"][0])]
    return replace(program, ops=ops)


def _key(operand: DeployedOperand) -> tuple[int, int, float]:
    return operand.lowest, operand.highest, float(operand.scale)


def _quantize(program: Program, conv: IntegerConv, known: Bounds) -> tuple[list[ProgramOp], str]:
    """Floats to integers; bounds that neither the type nor the values have are kept by a clip before."""
    operand, source, ops = conv.operand, conv.input, []
    signed = operand.lowest < 0
    shape = program.variables[source].shape
    scale = float(operand.scale)
    of_type = (-128, 127) if signed else (0, 255)
    if not (
        (operand.lowest == of_type[0] or known[0] >= operand.lowest * scale)
        and (operand.highest == of_type[1] or known[1] <= operand.highest * scale)
    ):
        clipped = program.new_variable(f"{conv.name}.clipped", shape)
        bounds = {"min": operand.lowest * scale, "max": operand.highest * scale}
        ops.append(ProgramOp("clip", {"X": [source]}, {"Out": [clipped]}, bounds | _ONEDNN))
        source = clipped
    kind = "int8" if signed else "uint8"
    output = program.new_variable(f"{conv.name}.input", shape, kind)
    attributes = {
        "Scale": float(1 / operand.scale),
        "Shift": 0.0,
        "is_negative_input": signed,
        "output_format": "NHWC",
    }
    ops.append(ProgramOp("quantize", {"Input": [source]}, {"Output": [output]}, attributes | _ONEDNN))
    return ops, output


def _weight(program: Program, conv: IntegerConv) -> list[ProgramOp]:
    shape = list(conv.integers.shape)
    stored = program.new_parameter(f"{conv.name}.weight", conv.integers)
    scale = program.new_parameter(f"{conv.name}.scale", conv.scale.astype(np.float32).reshape(-1, 1, 1, 1))
    cast, weight = (program.new_variable(f"{conv.name}.{what}", shape) for what in ("cast", "dequantized"))
    return [
        ProgramOp("cast", {"X": [stored]}, {"Out": [cast]}, {"in_dtype": _INT8, "out_dtype": _FLOAT32}),
        ProgramOp("elementwise_mul", {"X": [cast], "Y": [scale]}, {"Out": [weight]}, {"axis": -1}),
    ]


def _divisible(conv: IntegerConv) -> None:
    """Give a channel that a batch norm has turned off a scale that can be divided by, and integers of 0."""
    off = np.abs(conv.scale) < np.finfo(np.float32).tiny
    conv.integers = np.where(off[:, None, None, None], np.int8(0), conv.integers)
    conv.scale = np.where(off, 1.0, conv.scale)


def _conv(program: Program, conv: IntegerConv, source: str, weight: str) -> ProgramOp:
    bias = program.new_parameter(f"{conv.name}.bias", conv.bias.astype(np.float32))
    inputs = {"Input": [source], "Filter": [weight], "Bias": [bias]}
    if conv.residual is not None:
        inputs["ResidualData"] = [conv.residual]
    out = conv.output_operand
    if out is not None:
        known = program.variables[conv.output]
        kind = "uint8" if conv.activation.name == "relu6" else "int8"
        program.variables.pop(conv.output)
        program.new_variable(conv.output, known.shape, kind)
    attributes = {
        "data_format": "NCHW",
        "is_test": True,
        "mkldnn_data_type": "int8",
        "Scale_in": float(1 / conv.operand.scale),
        "Scale_weights": [float(number) for number in np.float32(1) / conv.scale.astype(np.float32)],
        "Scale_out": 1.0 if out is None else float(1 / out.scale),
        "Scale_in_eltwise": 1.0,
        # With a residual of floats the kernel writes floats by itself, and refuses to be told so.
        "force_fp32_output": out is None and conv.residual is None,
        "fuse_residual_connection": conv.residual is not None,
        "fuse_activation": conv.activation.name,
        "fuse_alpha": conv.activation.alpha,
        "fuse_beta": conv.activation.beta,
    }
    outputs = {"Output": [conv.output]}
    return ProgramOp("fused_conv2d", inputs, outputs, {**conv.geometry, **attributes, **_ONEDNN})
