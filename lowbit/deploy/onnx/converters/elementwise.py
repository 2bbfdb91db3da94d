"""Operators that work on every number by itself: activations, and arithmetic with broadcasting."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import BatchSize, Graph

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
    "sign": "Sign",
    "erf": "Erf",
    "sin": "Sin",
    "cos": "Cos",
    "reciprocal": "Reciprocal",
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
_ON_SIZES = {
    "divide": operator.truediv,
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "floor_divide": operator.floordiv,
    "maximum": max,
    "minimum": min,
}
_COMPARISONS = {
    "equal": "Equal",
    "greater_than": "Greater",
    "greater_equal": "GreaterOrEqual",
    "less_than": "Less",
    "less_equal": "LessOrEqual",
}
_LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}


@converts(*_UNARY, *(f"{name}_" for name in _UNARY))
def unary(op: Op, graph: Graph) -> Result:
    return graph.add(_UNARY[_plain(op)], [op.inputs[0]], shape=op.shape)


@converts(*_BINARY, *(f"{name}_" for name in _BINARY))
def binary(op: Op, graph: Graph) -> Result:
    if _are_sizes(op, graph):
        return _of_sizes(op, graph)
    return graph.add(_BINARY[_plain(op)], op.inputs, shape=op.shape)


@converts("floor_divide")
def floor_divide(op: Op, graph: Graph) -> Result:
    if _are_sizes(op, graph):
        return _of_sizes(op, graph)
    return graph.add("Floor", [graph.add("Div", op.inputs, shape=op.shape)], shape=op.shape)


@converts("remainder")
def remainder(op: Op, graph: Graph) -> Result:
    """With the sign of the divisor, as in Python: x - floor(x / y)·y."""
    x, y = op.inputs
    whole = graph.add("Floor", [graph.add("Div", [x, y], shape=op.shape)], shape=op.shape)
    return graph.add("Sub", [x, graph.add("Mul", [whole, y], shape=op.shape)], shape=op.shape)


@converts(*_COMPARISONS)
def compare(op: Op, graph: Graph) -> Result:
    return graph.add(_COMPARISONS[_plain(op)], op.inputs, shape=op.shape)


@converts("not_equal")
def not_equal(op: Op, graph: Graph) -> Result:
    return graph.add("Not", [graph.add("Equal", op.inputs, shape=op.shape)], shape=op.shape)


@converts(*_LOGICAL)
def logical(op: Op, graph: Graph) -> Result:
    return graph.add(_LOGICAL[_plain(op)], op.inputs, shape=op.shape)


@converts("logical_not")
def logical_not(op: Op, graph: Graph) -> Result:
    return graph.add("Not", op.inputs, shape=op.shape)


@converts("where", "where_")
def where(op: Op, graph: Graph) -> Result:
    return graph.add("Where", op.inputs, shape=op.shape)


@converts("masked_fill", "masked_fill_")
def masked_fill(op: Op, graph: Graph) -> Result:
    x, mask, value = op.inputs
    return graph.add("Where", [mask, value, x], shape=op.shape)


@converts("add_n")
def add_n(op: Op, graph: Graph) -> Result:
    return graph.add("Sum", op.inputs[0], shape=op.shape)


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


@converts("selu")
def selu(op: Op, graph: Graph) -> Result:
    return graph.add("Selu", op.inputs, shape=op.shape, alpha=op["alpha"], gamma=op["scale"])


@converts("logsigmoid")
def logsigmoid(op: Op, graph: Graph) -> Result:
    """-softplus(-x), which does not overflow."""
    (x,) = op.inputs
    turned = graph.add("Softplus", [graph.add("Neg", [x], shape=op.shape)], shape=op.shape)
    return graph.add("Neg", [turned], shape=op.shape)


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
        return _scaled_size(op, graph, x, factor, bias)
    kind = np.dtype(op.type)
    steps = [("Mul", factor, 1.0), ("Add", bias, 0.0)]
    for step, number, neutral in steps if op["bias_after_scale"] else reversed(steps):
        if number != neutral:
            x = graph.add(step, [x, graph.constant(np.asarray(number, kind))], shape=op.shape)
    return x


def _plain(op: Op) -> str:
    """The name without `pd_op.`, and without the underscore of an operator that writes into its input."""
    return op.name.removeprefix("pd_op.").removesuffix("_")


def _clip(op: Op, graph: Graph, lowest: float, highest: float) -> str:
    bounds = [graph.constant(np.float32(bound)) for bound in (lowest, highest)]
    return graph.add("Clip", [op.inputs[0], *bounds], shape=op.shape)


def _times(graph: Graph, x: str, factor: float) -> str:
    return graph.add("Mul", [x, graph.constant(np.float32(factor))], shape=graph.shapes[x])


def _are_sizes(op: Op, graph: Graph) -> bool:
    """Whether the operands are sizes, one of them the batch's; anything else is computed like any numbers."""
    some = any(name in graph.partial for name in op.inputs)
    return some and _plain(op) in _ON_SIZES and all(graph.known(name) is not None for name in op.inputs)


def _of_sizes(op: Op, graph: Graph) -> str:
    """ONNX's Div of int64 rounds as // does for sizes."""
    compute = _ON_SIZES[_plain(op)]
    left, right = (graph.known(name) for name in op.inputs)
    left, right = np.broadcast_arrays(left.astype(object), right.astype(object))
    pairs = zip(left.flat, right.flat, strict=True)
    found = [_computed(compute, a, b) for a, b in pairs]
    kind = "Div" if _plain(op) == "floor_divide" else _BINARY[_plain(op)]
    return graph.add_sizes(kind, op.inputs, np.array(found, object).reshape(left.shape))


def _computed(compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """A number or a multiple of the batch's size; None where the result is neither."""
    if left is None or right is None:
        return None
    try:
        found = compute(*(one if isinstance(one, BatchSize) else float(one) for one in (left, right)))
    except (TypeError, ValueError):
        return None
    return found if isinstance(found, BatchSize) else (int(found) if found == int(found) else None)


def _scaled_size(op: Op, graph: Graph, x: str, factor: float, bias: float) -> str:
    if factor != int(factor) or bias != int(bias):
        raise op.refuse("computes with the batch's size")
    steps = [("Mul", operator.mul, int(factor)), ("Add", operator.add, int(bias))]
    for kind, compute, number in steps if op["bias_after_scale"] else reversed(steps):
        sizes = graph.known(x)
        found = [_computed(compute, size, number) for size in sizes.flat]
        value = np.array(found, object).reshape(sizes.shape)
        x = graph.add_sizes(kind, [x, graph.constant(np.array(number, np.dtype(op.type)))], value)
    return x
