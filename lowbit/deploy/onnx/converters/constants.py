"""Constants, and shapes that are known but for the batch's size."""

from __future__ import annotations

import numpy as np
from onnx.helper import np_dtype_to_tensor_dtype

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import Graph

_TYPES = {
    "bool": np.bool_,
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
    value = np.array([op.number(1, graph)], _type(op))
    if -1 not in op.shape:
        return graph.constant(np.full(op.shape, value[0]))
    shape = graph.add("Shape", [op.inputs[0]], shape=[len(op.shape)])
    return graph.add("Expand", [graph.constant(value), shape], shape=op.shape)


@converts("shape", "shape64")
def shape(op: Op, graph: Graph) -> Result:
    sizes = [None if size == -1 else size for size in graph.shapes[op.inputs[0]]]
    return graph.add_partial(np.array(sizes, object))


@converts("cast")
def cast(op: Op, graph: Graph) -> Result:
    if op.inputs[0] in graph.partial:
        return op.inputs[0]
    to = np_dtype_to_tensor_dtype(np.dtype(_type(op)))
    return graph.add("Cast", [op.inputs[0]], shape=op.shape, to=int(to))


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
