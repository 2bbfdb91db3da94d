"""Converters of constants, shapes, slices, joins and reductions."""

from __future__ import annotations

from collections.abc import Sequence

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
    value: np.ndarray = np.array([op.number(1, graph)], _type(op))
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


# Reductions over axes.


_KINDS = {"mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}


@converts(*_KINDS)
def reduce(op: Op, graph: Graph) -> Result:
    x, rank = op.inputs[0], len(graph.shapes[op.inputs[0]])
    axes = op["axis"] if "axis" in op.attributes else op.ints(1, graph)
    axes = [axis % rank for axis in axes] or list(range(rank))
    kind, keep = _KINDS[op.name.removeprefix("pd_op.")], int(op["keepdim"])
    if kind == "ReduceSum":  # the first of them whose axes became an input
        return graph.add(kind, [x, graph.constant(np.array(axes, np.int64))], shape=op.shape, keepdims=keep)
    return graph.add(kind, [x], shape=op.shape, axes=axes, keepdims=keep)


# Operators that move values: reshape, transpose, slice, concat, pad.


_FAR = 2**31 - 1  # Paddle's end of a slice that goes to the end


@converts("reshape", "reshape_")
def reshape(op: Op, graph: Graph) -> Result:
    x, sizes = op.inputs[0], op.ints(1, graph)
    if x in graph.partial:
        return graph.add_partial(graph.partial[x].reshape(sizes))
    return _reshape(op, graph, sizes)


@converts("flatten")
def flatten(op: Op, graph: Graph) -> Result:
    # 0: as it was. The axes before the flattened ones keep their sizes.
    return _reshape(op, graph, [0] * op["start_axis"] + op.shape[op["start_axis"] :])


@converts("transpose")
def transpose(op: Op, graph: Graph) -> Result:
    return graph.add("Transpose", op.inputs, shape=op.shape, perm=list(op["perm"]))


@converts("squeeze", "squeeze_")
def squeeze(op: Op, graph: Graph) -> Result:
    x, before = op.inputs[0], graph.shapes[op.inputs[0]]
    given = op.ints(1, graph) or range(len(before))
    # Paddle leaves axes alone that have another size; ONNX does not accept them.
    axes = sorted({axis % len(before) for axis in given if before[axis % len(before)] == 1})
    if x in graph.partial:
        return graph.add_partial(graph.partial[x].squeeze(tuple(axes)))
    return _with_axes("Squeeze", op, graph, axes) if axes else x


@converts("unsqueeze", "unsqueeze_")
def unsqueeze(op: Op, graph: Graph) -> Result:
    axes = [axis % len(op.shape) for axis in op.ints(1, graph)]
    if op.inputs[0] in graph.partial:
        return graph.add_partial(np.expand_dims(graph.partial[op.inputs[0]], tuple(axes)))
    return _with_axes("Unsqueeze", op, graph, axes)


@converts("concat")
def concat(op: Op, graph: Graph) -> Result:
    parts = op.inputs[0]
    axis = int(op.number(1, graph)) % max(1, len(op.shape))
    if any(part in graph.partial for part in parts):
        return graph.add_partial(np.concatenate([_sizes(part, op, graph) for part in parts], axis))
    return graph.add("Concat", parts, shape=op.shape, axis=axis)


@converts("stack")
def stack(op: Op, graph: Graph) -> Result:
    parts, axis = op.inputs[0], op["axis"] % len(op.shape)
    if any(part in graph.partial for part in parts):
        return graph.add_partial(np.stack([_sizes(part, op, graph) for part in parts], axis))
    at = graph.constant(np.array([axis], np.int64))
    shape = [1 if i == axis else size for i, size in enumerate(op.shape)]
    wide = [graph.add("Unsqueeze", [part, at], shape=shape) for part in parts]
    return graph.add("Concat", wide, shape=op.shape, axis=axis)


@converts("split")
def split(op: Op, graph: Graph) -> Result:
    x = op.inputs[0]
    sections, axis = op.ints(1, graph), int(op.number(2, graph))
    return _split(x, sections, axis, op, graph)


@converts("split_with_num")
def split_with_num(op: Op, graph: Graph) -> Result:
    x, axis = op.inputs[0], int(op.number(1, graph))
    size = graph.shapes[x][axis]
    return _split(x, [size // op["num"]] * op["num"], axis, op, graph)


@converts("slice")
def slice_(op: Op, graph: Graph) -> Result:
    x, starts, ends = op.inputs[0], op.ints(1, graph), op.ints(2, graph)
    return _slice(x, op["axes"], starts, ends, [1] * len(starts), op["decrease_axis"], op, graph)


@converts("strided_slice")
def strided_slice(op: Op, graph: Graph) -> Result:
    starts, ends, steps = (op.ints(index, graph) for index in (1, 2, 3))
    return _slice(op.inputs[0], op["axes"], starts, ends, steps, [], op, graph)


@converts("pad")
def pad(op: Op, graph: Graph) -> Result:
    """Pairs (before, after) for every axis."""
    value, pairs = op.number(1, graph), op["paddings"]
    return _pad(op, graph, pairs[::2], pairs[1::2], "constant", value)


@converts("pad3d")
def pad3d(op: Op, graph: Graph) -> Result:
    """Paddle's padding of images: pairs for the last axis first, with a depth of 1 for two dimensions."""
    pairs = op.ints(1, graph)
    before, after = list(reversed(pairs[::2])), list(reversed(pairs[1::2]))  # depth, height, width
    where = slice(2, 5) if op["data_format"].startswith("NC") else slice(1, 4)
    begins, ends = [0] * 5, [0] * 5
    begins[where], ends[where] = before, after
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    mode = modes[op["mode"]]
    if mode == "wrap":
        return _wrapped(op, graph, begins, ends)
    return _pad(op, graph, begins, ends, mode, op["pad_value"])


@converts("expand")
def expand(op: Op, graph: Graph) -> Result:
    sizes = [1 if size in (None, -1) else size for size in op.ints(1, graph)]
    return graph.add("Expand", [op.inputs[0], graph.constant(np.array(sizes, np.int64))], shape=op.shape)


@converts("roll")
def roll(op: Op, graph: Graph) -> Result:
    x = op.inputs[0]
    shifts, axes = op.ints(1, graph), op["axis"]
    for shift, axis in zip(shifts, axes, strict=True):
        size = graph.shapes[x][axis]
        head, tail = _split(x, [size - shift % size, shift % size], axis, op, graph)
        x = graph.add("Concat", [tail, head], shape=op.shape, axis=axis)
    return x


def _reshape(op: Op, graph: Graph, sizes: list[int | None]) -> str:
    """The batch's size, None here, is copied (0) where it stays in front, and worked out (-1) elsewhere."""
    before, shape = graph.shapes[op.inputs[0]], list(op.shape)
    batch_stays = before[:1] == [-1] and (sizes[0] is None or _rest(before) == _rest(shape))
    for index, size in enumerate(sizes):
        if size in (None, -1):
            sizes[index] = 0 if index == 0 and batch_stays and shape[0] == -1 else shape[index]
    if sizes[:1] == [0] and sizes.count(-1) == 1 and _rest(before) is not None:
        # Paddle no longer knows it when the batch's size is a tensor.
        index = sizes.index(-1)
        known = int(np.prod([before[i] if size == 0 else size for i, size in enumerate(sizes[1:], 1)]))
        sizes[index] = shape[index] = _rest(before) // -known
    if sizes.count(-1) > 1:
        raise op.refuse("makes a shape of which more than the batch's size is unknown")
    return graph.add("Reshape", [op.inputs[0], graph.constant(np.array(sizes, np.int64))], shape=shape)


def _rest(shape: list[int]) -> int | None:
    """How many numbers an image has; None where that is not known."""
    return None if -1 in shape[1:] else int(np.prod(shape[1:], dtype=np.int64))


def _sizes(name: str, op: Op, graph: Graph) -> np.ndarray:
    value = graph.known(name)
    if value is None:
        raise op.refuse("joins sizes with numbers that are computed from the images")
    return value.astype(object)


def _with_axes(kind: str, op: Op, graph: Graph, axes: list[int]) -> str:
    return graph.add(kind, [op.inputs[0], graph.constant(np.array(axes, np.int64))], shape=op.shape)


def _split(x: str, sections: list[int], axis: int, op: Op, graph: Graph) -> list[str]:
    shape = graph.shapes[x]
    if -1 in sections:
        if shape[axis] == -1:
            raise op.refuse("splits the batch")
        sections = [shape[axis] - sum(sections) - 1 if size == -1 else size for size in sections]
    sizes = graph.constant(np.array(sections, np.int64))
    first = graph.add("Split", [x, sizes], shape=shape, outputs=len(sections), axis=axis)
    node = graph.producer(first)
    for name, size in zip(node.outputs, sections, strict=True):
        graph.shapes[name] = [size if i == axis % len(shape) else s for i, s in enumerate(shape)]
    return node.outputs


def _slice(
    x: str,
    axes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    steps: Sequence[int],
    dropped: Sequence[int],
    op: Op,
    graph: Graph,
) -> str:
    if x in graph.partial:
        index = [slice(None)] * graph.partial[x].ndim
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            index[axis] = slice(start, end, step)
        part = graph.partial[x][tuple(index)]
        return graph.add_partial(part.squeeze(tuple(dropped)) if dropped else part)
    if None in starts or None in ends:
        raise op.refuse("cuts where the batch's size says")
    shape = list(graph.shapes[x])
    for axis in axes:
        shape[axis] = 1 if axis in dropped else next(iter(op.shape[axis : axis + 1]), -1)
    numbers = [
        graph.constant(np.array(part, np.int64))
        for part in (starts, [_FAR if end >= _FAR else end for end in ends], axes, steps)
    ]
    y = graph.add("Slice", [x, *numbers], shape=shape if dropped else op.shape)
    if dropped:
        y = graph.add("Squeeze", [y, graph.constant(np.array(dropped, np.int64))], shape=op.shape)
    return y


def _pad(op: Op, graph: Graph, begins: Sequence[int], ends: Sequence[int], mode: str, value: float) -> str:
    pads = graph.constant(np.array([*begins, *ends], np.int64))
    inputs = [op.inputs[0], pads, graph.constant(np.float32(value))]
    return graph.add("Pad", inputs, shape=op.shape, mode=mode)


def _wrapped(op: Op, graph: Graph, begins: list[int], ends: list[int]) -> str:
    """Circular padding, which ONNX has only from opset 19: the other end is joined on."""
    x = op.inputs[0]
    for axis, (before, after) in enumerate(zip(begins, ends, strict=True)):
        size = graph.shapes[x][axis]
        pieces = [(size - before, size)] * bool(before) + [(0, size)] + [(0, after)] * bool(after)
        if len(pieces) == 1:
            continue
        parts = []
        for start, end in pieces:
            shape = [end - start if i == axis else s for i, s in enumerate(graph.shapes[x])]
            bounds = [graph.constant(np.array([n], np.int64)) for n in (start, end, axis)]
            parts.append(x if (start, end) == (0, size) else graph.add("Slice", [x, *bounds], shape=shape))
        shape = [size + before + after if i == axis else s for i, s in enumerate(graph.shapes[x])]
        x = graph.add("Concat", parts, shape=shape, axis=axis)
    return x
