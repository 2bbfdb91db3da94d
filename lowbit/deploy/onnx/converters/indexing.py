"""Converters of operators that pick numbers by index: gather, embedding, top-k, sorting."""

from __future__ import annotations

import numpy as np

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import Graph


@converts("gather")
def gather(op: Op, graph: Graph) -> Result:
    x, indices = op.inputs[:2]
    axis = int(op.number(2, graph)) if len(op.inputs) > 2 else op["axis"]
    return _gather(x, _flat(indices, graph), axis, op, graph)


@converts("index_select")
def index_select(op: Op, graph: Graph) -> Result:
    x, indices = op.inputs
    return _gather(x, indices, op["axis"], op, graph)


@converts("embedding")
def embedding(op: Op, graph: Graph) -> Result:
    """Paddle gives zeros for `padding_idx`, whatever the table holds there."""
    indices, table = op.inputs
    if op["padding_idx"] >= 0 and table in graph.constants:
        rows = graph.constants[table].copy()
        rows[op["padding_idx"]] = 0
        table = graph.constant(rows)
    return graph.add("Gather", [table, indices], shape=op.shape, axis=0)


@converts("gather_nd")
def gather_nd(op: Op, graph: Graph) -> Result:
    return graph.add("GatherND", op.inputs, shape=op.shape)


@converts("take_along_axis")
def take_along_axis(op: Op, graph: Graph) -> Result:
    return graph.add("GatherElements", op.inputs, shape=op.shape, axis=op["axis"])


@converts("topk")
def topk(op: Op, graph: Graph) -> Result:
    x, count = op.inputs[0], graph.constant(np.array([int(op.number(1, graph))], np.int64))
    order = {"largest": int(op["largest"]), "sorted": int(op["sorted"])}
    values = graph.add("TopK", [x, count], shape=op.shape, outputs=2, axis=op["axis"], **order)
    return tuple(graph.producer(values).outputs)


@converts("argsort")
def argsort(op: Op, graph: Graph) -> Result:
    """All numbers of an axis by TopK; its first result are the values, as Paddle's is."""
    x, axis = op.inputs[0], op["axis"]
    size = graph.shapes[x][axis]
    if size == -1:
        raise op.refuse("sorts an axis whose size is only known at run time")
    count = graph.constant(np.array([size], np.int64))
    order = {"largest": int(op["descending"]), "sorted": 1}
    values = graph.add("TopK", [x, count], shape=op.shape, outputs=2, axis=axis, **order)
    return tuple(graph.producer(values).outputs)


@converts("one_hot")
def one_hot(op: Op, graph: Graph) -> Result:
    depth = graph.constant(np.array(int(op.number(1, graph)), np.int64))
    values = graph.constant(np.array([0, 1], np.float32))
    return graph.add("OneHot", [op.inputs[0], depth, values], shape=op.shape, axis=-1)


def _gather(x: str, indices: str, axis: int, op: Op, graph: Graph) -> str:
    if x in graph.partial and indices in graph.constants:
        known = np.take(graph.partial[x], graph.constants[indices], axis)
        return graph.add_sizes("Gather", [x, indices], known, axis=axis)
    shape, before = list(op.shape), graph.shapes[x]
    if len(shape) == len(before):  # Paddle forgets sizes behind a reshape by the batch's size
        chosen = axis % len(before)
        shape = [*before[:chosen], shape[chosen], *before[chosen + 1 :]]
    return graph.add("Gather", [x, indices], shape=shape, axis=axis)


def _flat(indices: str, graph: Graph) -> str:
    """[K, 1] as [K]: Paddle's gather takes both."""
    shape = graph.shapes[indices]
    if len(shape) < 2:
        return indices
    return graph.add("Squeeze", [indices, graph.constant(np.array([1], np.int64))], shape=shape[:1])
