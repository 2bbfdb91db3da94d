"""Converters of operators that make one number of many along axes: sums, means, extremes, where they are."""

from __future__ import annotations

import numpy as np
from onnx.helper import np_dtype_to_tensor_dtype

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import Graph

_KINDS = {
    "mean": "ReduceMean",
    "sum": "ReduceSum",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "prod": "ReduceProd",
}


@converts(*_KINDS)
def reduce(op: Op, graph: Graph) -> Result:
    x, rank = op.inputs[0], len(graph.shapes[op.inputs[0]])
    axes = op["axis"] if "axis" in op.attributes else op.ints(1, graph)
    axes = [axis % rank for axis in axes] or list(range(rank))
    kind, keep = _KINDS[op.name.removeprefix("pd_op.")], int(op["keepdim"])
    if kind == "ReduceSum":  # the first of them whose axes became an input
        return graph.add(kind, [x, graph.constant(np.array(axes, np.int64))], shape=op.shape, keepdims=keep)
    return graph.add(kind, [x], shape=op.shape, axes=axes, keepdims=keep)


@converts("argmax", "argmin")
def argmax(op: Op, graph: Graph) -> Result:
    x, axis, shape = op.inputs[0], int(op.number(1, graph)), op.shape
    if op["flatten"]:
        raise op.refuse("looks for the extreme of the whole batch: give it an axis")
    kind = "ArgMax" if op.name == "pd_op.argmax" else "ArgMin"
    found = graph.add(kind, [x], shape=shape, axis=axis, keepdims=int(op["keepdims"]))
    if op.type == "int64":
        return found
    return graph.add("Cast", [found], shape=shape, to=int(np_dtype_to_tensor_dtype(np.dtype(op.type))))


@converts("cumsum")
def cumsum(op: Op, graph: Graph) -> Result:
    if op["flatten"]:
        raise op.refuse("sums over the whole batch: give it an axis")
    axis = graph.constant(np.array(int(op.number(1, graph)), np.int64))
    how = {"exclusive": int(op["exclusive"]), "reverse": int(op["reverse"])}
    return graph.add("CumSum", [op.inputs[0], axis], shape=op.shape, **how)
