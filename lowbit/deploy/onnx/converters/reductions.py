"""Means, sums and extremes over axes."""

from __future__ import annotations

import numpy as np

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import Graph

_KINDS = {"mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}


@converts(*_KINDS)
def reduce(op: Op, graph: Graph) -> Result:
    x, rank = op.inputs[0], len(graph.shapes[op.inputs[0]])
    axes = op["axis"] if "axis" in op.attributes else op.ints(1, graph)
    axes = [axis % rank for axis in axes] or list(range(rank))
    kind, keep = _KINDS[op.name.removeprefix("pd_op.")], int(op["keepdim"])
    if kind == "ReduceSum":  # the first of them whose axes became an input
        return graph.add(
            kind, [x, graph.constant(np.array(axes, np.int64))], shape=op.shape, keepdims=keep
        )
    return graph.add(kind, [x], shape=op.shape, axes=axes, keepdims=keep)
