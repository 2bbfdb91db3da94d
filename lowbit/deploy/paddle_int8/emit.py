"""Convolutions of integers, written as the operators that Paddle's oneDNN kernels run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lowbit.deploy.paddle_int8.integer_conv import Bounds, IntegerConv, Node, value_bounds
from lowbit.deploy.paddle_int8.program import Op, Program
from lowbit.nn import DeployedOperand

_ONEDNN = {"use_mkldnn": True}
_FLOAT32, _INT8 = 5, 21  # Paddle's numbers of element types, in `cast`


def emit(program: Program, nodes: list[Node]) -> Program:
    """The program with every IntegerConv as operators: its weight is int8, dequantized when it is loaded.

    Paddle's kernel wants a float weight and the scale that makes integers of it again. The integers come back
    as they were: their scale is undone to within a rounding error of a float, far below half a step.
    """
    ops: list[Op] = []
    integers: dict[tuple, str] = {
        (conv.output, *_key(conv.output_operand)): conv.output
        for conv in nodes
        if isinstance(conv, IntegerConv) and conv.output_operand is not None
    }
    bounds = value_bounds(nodes)
    for node in nodes:
        if isinstance(node, Op):
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


def _quantize(program: Program, conv: IntegerConv, known: Bounds) -> tuple[list[Op], str]:
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
        ops.append(Op("clip", {"X": [source]}, {"Out": [clipped]}, bounds | _ONEDNN))
        source = clipped
    kind = "int8" if signed else "uint8"
    output = program.new_variable(f"{conv.name}.input", shape, kind)
    attributes = {
        "Scale": float(1 / operand.scale),
        "Shift": 0.0,
        "is_negative_input": signed,
        "output_format": "NHWC",
    }
    ops.append(Op("quantize", {"Input": [source]}, {"Output": [output]}, attributes | _ONEDNN))
    return ops, output


def _weight(program: Program, conv: IntegerConv) -> list[Op]:
    shape = list(conv.integers.shape)
    stored = program.new_parameter(f"{conv.name}.weight", conv.integers)
    scale = program.new_parameter(f"{conv.name}.scale", conv.scale.astype(np.float32).reshape(-1, 1, 1, 1))
    cast, weight = (program.new_variable(f"{conv.name}.{what}", shape) for what in ("cast", "dequantized"))
    return [
        Op("cast", {"X": [stored]}, {"Out": [cast]}, {"in_dtype": _INT8, "out_dtype": _FLOAT32}),
        Op("elementwise_mul", {"X": [cast], "Y": [scale]}, {"Out": [weight]}, {"axis": -1}),
    ]


def _divisible(conv: IntegerConv) -> None:
    """Give a channel that a batch norm has turned off a scale that can be divided by, and integers of 0."""
    off = np.abs(conv.scale) < np.finfo(np.float32).tiny
    conv.integers = np.where(off[:, None, None, None], np.int8(0), conv.integers)
    conv.scale = np.where(off, 1.0, conv.scale)


def _conv(program: Program, conv: IntegerConv, source: str, weight: str) -> Op:
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
    return Op("fused_conv2d", inputs, outputs, {**conv.geometry, **attributes, **_ONEDNN})
