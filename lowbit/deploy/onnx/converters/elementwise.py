"""Operators that work on every number by itself: activations, and arithmetic with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import Graph

_UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "abs": "Abs",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "floor": "Floor",
    "ceil": "Ceil",
    "softsign": "Softsign",
    "hardswish": "HardSwish",
    "mish": "Mish",
}
_BINARY = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "elementwise_pow": "Pow",
}
_ON_SIZES = {"add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b}


@converts(*_UNARY, *(f"{name}_" for name in _UNARY))
def unary(op: Op, graph: Graph) -> Result:
    return graph.add(_UNARY[_plain(op)], [op.inputs[0]], shape=op.shape)


@converts(*_BINARY, *(f"{name}_" for name in _BINARY))
def binary(op: Op, graph: Graph) -> Result:
    if any(name in graph.partial for name in op.inputs):
        return _of_sizes(op, graph)
    return graph.add(_BINARY[_plain(op)], op.inputs, shape=op.shape)


@converts("relu6")
def relu6(op: Op, graph: Graph) -> Result:
    return _clip(op, graph, 0.0, 6.0)


@converts("hardtanh")
def hardtanh(op: Op, graph: Graph) -> Result:
    return _clip(op, graph, op["t_min"], op["t_max"])


@converts("clip", "clip_")
def clip(op: Op, graph: Graph) -> Result:
    return _clip(op, graph, op.number(1, graph), op.number(2, graph))


@converts("hardsigmoid")
def hardsigmoid(op: Op, graph: Graph) -> Result:
    return graph.add("HardSigmoid", op.inputs, shape=op.shape, alpha=op["slope"], beta=op["offset"])


@converts("swish", "silu")
def swish(op: Op, graph: Graph) -> Result:
    (x,) = op.inputs
    return graph.add("Mul", [x, graph.add("Sigmoid", [x], shape=op.shape)], shape=op.shape)


@converts("gelu")
def gelu(op: Op, graph: Graph) -> Result:
    """x / 2 · (1 + erf(x / √2)), or the form with tanh; ONNX's own Gelu would need opset 20."""
    (x,) = op.inputs
    if op["approximate"]:
        cube = graph.add("Mul", [graph.add("Mul", [x, x], shape=op.shape), x], shape=op.shape)
        inner = graph.add("Add", [x, _times(graph, cube, 0.044715)], shape=op.shape)
        bent = graph.add("Tanh", [_times(graph, inner, math.sqrt(2 / math.pi))], shape=op.shape)
    else:
        bent = graph.add("Erf", [_times(graph, x, math.sqrt(0.5))], shape=op.shape)
    one = graph.constant(np.float32(1))
    return graph.add(
        "Mul", [_times(graph, x, 0.5), graph.add("Add", [bent, one], shape=op.shape)], shape=op.shape
    )


@converts("leaky_relu", "leaky_relu_")
def leaky_relu(op: Op, graph: Graph) -> Result:
    return graph.add("LeakyRelu", op.inputs, shape=op.shape, alpha=op["negative_slope"])


@converts("elu", "elu_")
def elu(op: Op, graph: Graph) -> Result:
    return graph.add("Elu", op.inputs, shape=op.shape, alpha=op["alpha"])


@converts("prelu")
def prelu(op: Op, graph: Graph) -> Result:
    x, slope = op.inputs
    if op["mode"] == "channel":
        sizes = [1] * len(op.shape)
        sizes[1 if op["data_format"].startswith("NC") else -1] = -1
        slope = graph.constant(graph.constants[slope].reshape(sizes))
    elif op["mode"] != "all":
        raise op.refuse(f"has the mode {op['mode']}, which has no ONNX form in lowbit")
    return graph.add("PRelu", [x, slope], shape=op.shape)


@converts("softplus")
def softplus(op: Op, graph: Graph) -> Result:
    if op["beta"] != 1.0:
        raise op.refuse(f"has beta {op['beta']}, which ONNX does not know")
    return graph.add("Softplus", op.inputs, shape=op.shape)


@converts("square")
def square(op: Op, graph: Graph) -> Result:
    return graph.add("Mul", [op.inputs[0]] * 2, shape=op.shape)


@converts("rsqrt")
def rsqrt(op: Op, graph: Graph) -> Result:
    return graph.add("Reciprocal", [graph.add("Sqrt", op.inputs, shape=op.shape)], shape=op.shape)


@converts("pow")
def power(op: Op, graph: Graph) -> Result:
    exponent = graph.constant(np.float32(op["y"]))
    return graph.add("Pow", [op.inputs[0], exponent], shape=op.shape)


@converts("scale", "scale_")
def scale(op: Op, graph: Graph) -> Result:
    """x · scale + bias, or (x + bias) · scale."""
    x, factor, bias = op.inputs[0], op.number(1, graph), op["bias"]
    if x in graph.partial:
        if factor != 1 or bias != int(bias):
            raise op.refuse("computes with the batch's size")
        return graph.add_partial(_each(graph.partial[x], lambda size: size + int(bias)))
    kind = graph.constants[x].dtype if x in graph.constants else np.dtype(np.float32)
    steps = [("Mul", factor, 1.0), ("Add", bias, 0.0)]
    for operator, number, neutral in steps if op["bias_after_scale"] else reversed(steps):
        if number != neutral:
            x = graph.add(operator, [x, graph.constant(np.asarray(number, kind))], shape=op.shape)
    return x


def _plain(op: Op) -> str:
    """The name without `pd_op.`, and without the underscore of an operator that writes into its input."""
    return op.name.removeprefix("pd_op.").removesuffix("_")


def _clip(op: Op, graph: Graph, lowest: float, highest: float) -> str:
    bounds = [graph.constant(np.float32(bound)) for bound in (lowest, highest)]
    return graph.add("Clip", [op.inputs[0], *bounds], shape=op.shape)


def _times(graph: Graph, x: str, factor: float) -> str:
    return graph.add("Mul", [x, graph.constant(np.float32(factor))], shape=graph.shapes[x])


def _of_sizes(op: Op, graph: Graph) -> str:
    compute = _ON_SIZES.get(_plain(op))
    left, right = (graph.known(name) for name in op.inputs)
    if compute is None or left is None or right is None:
        raise op.refuse("computes with the batch's size")
    left, right = np.broadcast_arrays(left.astype(object), right.astype(object))
    pairs = zip(left.flat, right.flat, strict=True)
    found = [None if a is None or b is None else compute(int(a), int(b)) for a, b in pairs]
    return graph.add_partial(np.array(found, object).reshape(left.shape))


def _each(sizes: np.ndarray, compute: Callable[[Any], Any]) -> np.ndarray:
    found = [None if size is None else compute(size) for size in sizes.flat]
    return np.array(found, object).reshape(sizes.shape)
