"""Converters of normalization: batch, layer, group and instance norm, vector norms, softmax."""

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


@converts("log_softmax")
def log_softmax(op: Op, graph: Graph) -> Result:
    return graph.add("LogSoftmax", op.inputs, shape=op.shape, axis=op["axis"])


@converts("instance_norm")
def instance_norm(op: Op, graph: Graph) -> Result:
    x, gain, shift = op.inputs
    channels = graph.shapes[x][1]
    gain = gain or graph.constant(np.ones([channels], np.float32))
    shift = shift or graph.constant(np.zeros([channels], np.float32))
    return graph.add("InstanceNormalization", [x, gain, shift], shape=op.shape, epsilon=op["epsilon"])


@converts("group_norm")
def group_norm(op: Op, graph: Graph) -> Result:
    """Instance norm of the groups as channels, then gain and shift; ONNX has group norm from opset 18 on."""
    x, gain, shift = op.inputs
    if not op["data_format"].startswith("NC"):
        raise op.refuse("has the channels last")
    groups, before = op["groups"], graph.shapes[x]
    if -1 in before[1:]:
        raise op.refuse("normalizes images whose size is only known at run time")
    rest = int(np.prod(before[1:])) // groups
    flat = graph.add(
        "Reshape", [x, graph.constant(np.array([0, groups, rest], np.int64))], shape=[before[0], groups, rest]
    )
    ones, zeros = (
        graph.constant(np.ones([groups], np.float32)),
        graph.constant(np.zeros([groups], np.float32)),
    )
    even = graph.add(
        "InstanceNormalization", [flat, ones, zeros], shape=[before[0], groups, rest], epsilon=op["epsilon"]
    )
    y = graph.add("Reshape", [even, graph.constant(np.array([0, *before[1:]], np.int64))], shape=before)
    for kind, name in (("Mul", gain), ("Add", shift)):
        if name is not None:
            sizes = graph.constant(np.array([-1] + [1] * (len(before) - 2), np.int64))
            each = graph.add("Reshape", [name, sizes], shape=[before[1]] + [1] * (len(before) - 2))
            y = graph.add(kind, [y, each], shape=before)
    return y


@converts("p_norm")
def p_norm(op: Op, graph: Graph) -> Result:
    """Of order 1 or 2 along an axis; the sum of absolute values, since OpenVINO errs with ReduceL1."""
    if op["asvector"] or op["porder"] not in (1.0, 2.0):
        raise op.refuse(f"is a norm of order {op['porder']} over the whole tensor or unknown to ONNX")
    x = op.inputs[0]
    axis, keep = op["axis"] % len(graph.shapes[x]), int(op["keepdim"])
    if op["porder"] == 2.0:
        return graph.add("ReduceL2", [x], shape=op.shape, axes=[axis], keepdims=keep)
    size = graph.add("Abs", [x], shape=graph.shapes[x])
    axes = graph.constant(np.array([axis], np.int64))
    return graph.add("ReduceSum", [size, axes], shape=op.shape, keepdims=keep)
