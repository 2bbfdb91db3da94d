"""Batch norm with its running statistics, layer norm, softmax."""

from __future__ import annotations

import numpy as np

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import Graph


@converts("batch_norm_", "batch_norm")
def batch_norm(op: Op, graph: Graph) -> Result:
    x, mean, variance, gain, shift = op.inputs
    if not (op["is_test"] or op["use_global_stats"]):
        raise op.refuse("normalizes by the batch's own statistics: its layer is not in evaluation mode")
    channels = graph.shapes[mean]
    gain = gain or graph.constant(np.ones(channels, np.float32))
    shift = shift or graph.constant(np.zeros(channels, np.float32))
    rank = len(op.shape)
    inputs = [gain, shift, mean, variance]
    if op["data_format"].startswith("NC") or rank == 2:
        return graph.add("BatchNormalization", [x, *inputs], shape=op.shape, epsilon=op["epsilon"])
    first, last = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    shape = [op.shape[axis] for axis in first]
    turned = graph.add("Transpose", [x], shape=shape, perm=first)
    y = graph.add("BatchNormalization", [turned, *inputs], shape=shape, epsilon=op["epsilon"])
    return graph.add("Transpose", [y], shape=op.shape, perm=last)


@converts("layer_norm")
def layer_norm(op: Op, graph: Graph) -> Result:
    x, gain, shift = op.inputs
    axis = op["begin_norm_axis"]
    sizes = op.shape[axis:]
    values = [
        np.full(sizes, default, np.float32) if name is None else graph.constants[name].reshape(sizes)
        for name, default in ((gain, 1.0), (shift, 0.0))
    ]
    inputs = [x, *map(graph.constant, values)]
    return graph.add("LayerNormalization", inputs, shape=op.shape, axis=axis, epsilon=op["epsilon"])


@converts("softmax", "softmax_")
def softmax(op: Op, graph: Graph) -> Result:
    return graph.add("Softmax", op.inputs, shape=op.shape, axis=op["axis"])
