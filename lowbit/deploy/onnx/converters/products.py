"""Convolutions and matrix products; a graph's product has x and weight, its bias comes as an addition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import Graph

_TO_CHANNELS_FIRST, _TO_CHANNELS_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


@converts("conv2d", "depthwise_conv2d")
def conv2d(op: Op, graph: Graph) -> Result:
    x, weight = op.inputs
    kernel, strides, dilations = graph.shapes[weight][2:], list(op["strides"]), list(op["dilations"])
    if op["padding_algorithm"] == "SAME":
        dilations = [1, 1]  # as Paddle computes it
    x = _channels_first(x, op, graph)
    pads = padding(op, graph.shapes[x][2:], kernel, strides)
    return _product(
        "Conv", [x, weight], op, graph,
        strides=strides, dilations=dilations, pads=pads, group=op["groups"], kernel_shape=kernel,
    )  # fmt: skip


@converts("conv2d_transpose", "depthwise_conv2d_transpose")
def conv2d_transpose(op: Op, graph: Graph) -> Result:
    x, weight = op.inputs[:2]
    kernel, strides, dilations = graph.shapes[weight][2:], list(op["strides"]), list(op["dilations"])
    if op["padding_algorithm"] == "SAME":
        dilations = [1, 1]
    x = _channels_first(x, op, graph)
    sizes = graph.shapes[x][2:]
    pads = padding(op, sizes, kernel, strides)
    out = op.shape[2:] if op["data_format"] == "NCHW" else op.shape[1:3]
    if -1 in (*sizes, *out):
        raise op.refuse("gets images whose size is only known at run time")
    # What Paddle was asked for (output_size, output_padding) beyond what the geometry gives.
    extra = [
        out[i] - ((sizes[i] - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 - pads[i] - pads[i + 2])
        for i in range(2)
    ]
    return _product(
        "ConvTranspose", [x, weight], op, graph,
        strides=strides, dilations=dilations, pads=pads, group=op["groups"], kernel_shape=kernel,
        output_padding=extra,
    )  # fmt: skip


@converts("matmul")
def matmul(op: Op, graph: Graph) -> Result:
    operands = []
    for name, turned in zip(op.inputs, (op["transpose_x"], op["transpose_y"]), strict=True):
        shape = graph.shapes[name]
        if turned and len(shape) > 1:
            axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            name = graph.add("Transpose", [name], shape=[shape[axis] for axis in axes], perm=axes)
        operands.append(name)
    return graph.add("MatMul", operands, shape=op.shape)


@converts("bmm")
def bmm(op: Op, graph: Graph) -> Result:
    return graph.add("MatMul", op.inputs, shape=op.shape)


@converts("mv")
def mv(op: Op, graph: Graph) -> Result:
    return graph.add("MatMul", op.inputs, shape=op.shape)


@converts("einsum")
def einsum(op: Op, graph: Graph) -> Result:
    return graph.add("Einsum", op.inputs[0], shape=op.shape, equation=op["equation"].replace(" ", ""))


@converts("addmm")
def addmm(op: Op, graph: Graph) -> Result:
    added, x, y = op.inputs
    product = graph.add("MatMul", [x, y], shape=op.shape)
    parts = [_times(added, op["beta"], graph), _times(product, op["alpha"], graph)]
    return graph.add("Add", parts, shape=op.shape)


def _times(x: str, factor: float, graph: Graph) -> str:
    if factor == 1:
        return x
    return graph.add("Mul", [x, graph.constant(np.float32(factor))], shape=graph.shapes[x])


def padding(op: Op, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> list[int]:
    """ONNX's pads (top, left, bottom, right) of an operator with Paddle's attributes."""
    algorithm, given = op["padding_algorithm"], list(op["paddings"])
    if algorithm == "VALID":
        return [0, 0, 0, 0]
    if algorithm == "SAME":
        if -1 in sizes:
            raise op.refuse("pads to the SAME size images whose size is only known at run time")
        totals = [
            max((-(-size // stride) - 1) * stride + k - size, 0)
            for size, k, stride in zip(sizes, kernel, strides, strict=True)
        ]
        before = [total // 2 for total in totals]
        return before + [total - b for total, b in zip(totals, before, strict=True)]
    if len(given) == 2:
        return given * 2
    top, bottom, left, right = given
    return [top, left, bottom, right]


def _channels_first(x: str, op: Op, graph: Graph) -> str:
    if op["data_format"] == "NCHW":
        return x
    shape = [graph.shapes[x][axis] for axis in _TO_CHANNELS_FIRST]
    return graph.add("Transpose", [x], shape=shape, perm=_TO_CHANNELS_FIRST)


def _product(kind: str, inputs: list[str], op: Op, graph: Graph, **attributes: Any) -> str:
    if op["data_format"] == "NCHW":
        return graph.add(kind, inputs, shape=op.shape, **attributes)
    shape = [op.shape[axis] for axis in _TO_CHANNELS_FIRST]
    y = graph.add(kind, inputs, shape=shape, **attributes)
    return graph.add("Transpose", [y], shape=op.shape, perm=_TO_CHANNELS_LAST)
