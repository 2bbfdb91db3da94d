"""Converters of constants, of sizes and of types."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from onnx.helper import np_dtype_to_tensor_dtype

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import BatchSize, Graph

_TYPES = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
    "float32": np.float32,
    "float64": np.float64,
    "int32": np.int32,
    "int64": np.int64,
}


@converts("full")
def full(op: Op, graph: Graph) -> Result:
    return graph.constant(np.full(op["shape"], op["value"], _type(op)))


@converts("full_int_array")
def full_int_array(op: Op, graph: Graph) -> Result:
    return graph.constant(np.array(op["value"], np.int64))


@converts("assign_value", "assign_value_")
def assign_value(op: Op, graph: Graph) -> Result:
    return graph.constant(np.array(op["values"], _type(op)).reshape(op["shape"]))


@converts("arange")
def arange(op: Op, graph: Graph) -> Result:
    start, end, step = (op.number(index, graph) for index in range(3))
    return graph.constant(np.arange(start, end, step).astype(_type(op)))


@converts("full_like")
def full_like(op: Op, graph: Graph) -> Result:
    value: np.ndarray = np.array([op.number(1, graph)], _type(op))
    if -1 not in op.shape:
        return graph.constant(np.full(op.shape, value[0]))
    shape = graph.add("Shape", [op.inputs[0]], shape=[len(op.shape)])
    return graph.add("Expand", [graph.constant(value), shape], shape=op.shape)


@converts("full_with_tensor")
def full_with_tensor(op: Op, graph: Graph) -> Result:
    """A number in a shape of which the batch's size is part."""
    value: np.ndarray = np.array([op.number(0, graph)], _type(op))
    sizes = op.ints(1, graph)
    if all(isinstance(size, int) for size in sizes):
        return graph.constant(np.full(sizes, value[0]))
    shape = [size if isinstance(size, int) else -1 for size in sizes]
    return graph.add("Expand", [graph.constant(value), op.tensor_of_ints(1, graph)], shape=shape)


@converts("linspace")
def linspace(op: Op, graph: Graph) -> Result:
    start, stop, count = (op.number(index, graph) for index in range(3))
    return graph.constant(np.linspace(start, stop, int(count)).astype(_type(op)))


@converts("meshgrid")
def meshgrid(op: Op, graph: Graph) -> Result:
    values = [graph.known(name) for name in op.inputs[0]]
    if any(value is None or value.dtype == object for value in values):
        raise op.refuse("takes numbers that are computed from the images")
    grids: list[np.ndarray] = list(np.meshgrid(*values, indexing="ij"))
    return [graph.constant(grid) for grid in grids]


@converts("numel")
def numel(op: Op, graph: Graph) -> Result:
    sizes = graph.shapes[op.inputs[0]]
    if -1 not in sizes:
        return graph.constant(np.array(np.prod(sizes, dtype=np.int64)))
    return graph.add_sizes("Size", [op.inputs[0]], np.array(None, object))


@converts("shape", "shape64")
def shape(op: Op, graph: Graph) -> Result:
    x = op.inputs[0]
    batch = BatchSize(graph.multiples.get(x, Fraction(1))) if graph.shapes[x].count(-1) == 1 else None
    sizes = [batch if size == -1 else size for size in graph.shapes[x]]
    return graph.add_sizes("Shape", [x], np.array(sizes, object))


@converts("cast")
def cast(op: Op, graph: Graph) -> Result:
    (x,) = op.inputs
    is_size = x in graph.partial
    to = np_dtype_to_tensor_dtype(np.dtype(np.int64 if is_size and op.type == "int32" else _type(op)))
    y = graph.add("Cast", [x], shape=op.shape, to=int(to))
    if is_size:
        graph.partial[y] = graph.partial[x]
    return y


@converts("assign", "share_data_", "share_data", "dropout")
def identity(op: Op, graph: Graph) -> Result:
    """What lets its input through in evaluation; dropout of the old kind scales it."""
    if op.name == "pd_op.dropout" and op["mode"] == "downgrade_in_infer":
        keep = graph.constant(np.float32(1 - op.number(2, graph)))
        return graph.add("Mul", [op.inputs[0], keep], shape=op.shape)
    return op.inputs[0]


def _type(op: Op) -> type:
    if op["dtype"] not in _TYPES:
        raise op.refuse(f"makes numbers of type {op['dtype']}, which lowbit does not write")
    return _TYPES[op["dtype"]]
