"""Converters of constants, shapes, slices, joins and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

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


# Reductions over axes.


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


# Operators that move values: reshape, transpose, slice, concat, pad.


_FAR = 2**31 - 1  # Paddle's end of a slice that goes to the end


@converts("reshape", "reshape_")
def reshape(op: Op, graph: Graph) -> Result:
    x, sizes = op.inputs[0], op.ints(1, graph)
    if x in graph.partial:
        wanted = graph.constant(np.array(sizes, np.int64))
        return graph.add_sizes("Reshape", [x, wanted], graph.partial[x].reshape(sizes))
    return _reshape(op, graph, sizes)


@converts("flatten")
def flatten(op: Op, graph: Graph) -> Result:
    # 0: as it was. The axes before the flattened ones keep their sizes.
    shape = graph.shapes[op.inputs[0]]
    start, stop = (axis % max(1, len(shape)) for axis in (op["start_axis"], op["stop_axis"]))
    flat = shape[start : stop + 1]
    size = -1 if -1 in flat else int(np.prod(flat, dtype=np.int64))
    return _reshape(op, graph, [*[0] * start, size, *shape[stop + 1 :]])


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
        where = graph.constant(np.array(axes, np.int64))
        return graph.add_sizes("Squeeze", [x, where], graph.partial[x].squeeze(tuple(axes)))
    return _with_axes("Squeeze", op, graph, axes) if axes else x


@converts("unsqueeze", "unsqueeze_")
def unsqueeze(op: Op, graph: Graph) -> Result:
    axes = [axis % len(op.shape) for axis in op.ints(1, graph)]
    if (x := op.inputs[0]) in graph.partial:
        where = graph.constant(np.array(axes, np.int64))
        return graph.add_sizes("Unsqueeze", [x, where], np.expand_dims(graph.partial[x], tuple(axes)))
    return _with_axes("Unsqueeze", op, graph, axes)


@converts("concat")
def concat(op: Op, graph: Graph) -> Result:
    parts = op.inputs[0]
    axis = int(op.number(1, graph)) % max(1, len(op.shape))
    if any(part in graph.partial for part in parts):
        known = np.concatenate([_sizes(part, op, graph) for part in parts], axis)
        return graph.add_sizes("Concat", parts, known, axis=axis)
    return graph.add("Concat", parts, shape=op.shape, axis=axis)


@converts("stack")
def stack(op: Op, graph: Graph) -> Result:
    parts, axis = op.inputs[0], op["axis"] % len(op.shape)
    at = graph.constant(np.array([axis], np.int64))
    shape = [1 if i == axis else size for i, size in enumerate(op.shape)]
    if any(part in graph.partial for part in parts):
        known = [np.expand_dims(_sizes(part, op, graph), axis) for part in parts]
        wide = [
            graph.add_sizes("Unsqueeze", [part, at], value) for part, value in zip(parts, known, strict=True)
        ]
        return graph.add_sizes("Concat", wide, np.concatenate(known, axis), axis=axis)
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
    """-1, in Paddle, leaves a size as it is. The batch's size is read off when the network runs."""
    x, sizes = op.inputs[0], op.ints(1, graph)
    before = [1] * (len(sizes) - len(graph.shapes[x])) + graph.shapes[x]
    sizes = [old if new == -1 else new for new, old in zip(sizes, before, strict=True)]
    shape = [size if isinstance(size, int) else -1 for size in sizes]
    batch = [size for size in sizes if isinstance(size, BatchSize)]
    if any(
        new != old and not isinstance(new, int) and old == 1 for new, old in zip(sizes, before, strict=True)
    ):
        one = graph.constant(np.array([1], np.int64))
        wanted = graph.add("Max", [op.tensor_of_ints(1, graph), one], shape=[len(sizes)])  # of -1
        y = graph.add("Expand", [x, wanted], shape=shape)
    else:
        known = np.array([max(1, size) if isinstance(size, int) else 1 for size in sizes], np.int64)
        y = graph.add("Expand", [x, graph.constant(known)], shape=shape)
    return _with_multiple(y, batch[0].factor if len(batch) == 1 else None, graph)


@converts("expand_as")
def expand_as(op: Op, graph: Graph) -> Result:
    x, sizes = op.inputs[0], list(op["target_shape"])
    if -1 in sizes:
        if len(op.inputs) < 2 or op.inputs[1] is None:
            raise op.refuse("expands to a shape that is only known at run time")
        wanted = graph.add("Shape", [op.inputs[1]], shape=[len(sizes)])
    else:
        wanted = graph.constant(np.array(sizes, np.int64))
    return graph.add("Expand", [x, wanted], shape=op.shape)


@converts("tile")
def tile(op: Op, graph: Graph) -> Result:
    x, times = op.inputs[0], op.ints(1, graph)
    before = graph.shapes[x]
    rank = max(len(times), len(before))
    times = [1] * (rank - len(times)) + times
    if len(before) < rank:
        wide = [1] * (rank - len(before)) + before
        axes = graph.constant(np.arange(rank - len(before)))
        x, before = graph.add("Unsqueeze", [x, axes], shape=wide), wide
    pairs = list(zip(times, before, strict=True))
    shape = [count * size if isinstance(count, int) and size != -1 else -1 for count, size in pairs]
    if not all(isinstance(count, int) for count in times):
        if len(op.ints(1, graph)) < rank:
            raise op.refuse("repeats by the batch's size along fewer axes than the tensor has")
        y = graph.add("Tile", [x, op.tensor_of_ints(1, graph)], shape=shape)
        batch = [count * size for count, size in pairs if isinstance(count, BatchSize) and size != -1]
        return _with_multiple(y, batch[0].factor if len(batch) == 1 else None, graph)
    return graph.add("Tile", [x, graph.constant(np.array(times, np.int64))], shape=shape)


@converts("flip")
def flip(op: Op, graph: Graph) -> Result:
    axes = op["axis"]
    ends = ([-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))
    return graph.add(
        "Slice", [op.inputs[0], *(graph.constant(np.array(one, np.int64)) for one in ends)], shape=op.shape
    )


@converts("unbind")
def unbind(op: Op, graph: Graph) -> Result:
    x, axis = op.inputs[0], op["axis"]
    shape = graph.shapes[x]
    where = graph.constant(np.array([axis % len(shape)], np.int64))
    rest = [size for i, size in enumerate(shape) if i != axis % len(shape)]
    parts = _split(x, [1] * shape[axis], axis, op, graph)
    return [graph.add("Squeeze", [part, where], shape=rest) for part in parts]


@converts("meshgrid")
def meshgrid(op: Op, graph: Graph) -> Result:
    values = [graph.known(name) for name in op.inputs[0]]
    if any(value is None or value.dtype == object for value in values):
        raise op.refuse("takes numbers that are computed from the images")
    grids: list[np.ndarray] = list(np.meshgrid(*values, indexing="ij"))
    return [graph.constant(grid) for grid in grids]


@converts("pixel_shuffle")
def pixel_shuffle(op: Op, graph: Graph) -> Result:
    if op["data_format"] != "NCHW":
        raise op.refuse("has the channels last")
    factor = op["upscale_factor"]
    return graph.add("DepthToSpace", [op.inputs[0]], shape=op.shape, blocksize=factor, mode="CRD")


@converts("roll")
def roll(op: Op, graph: Graph) -> Result:
    x = op.inputs[0]
    shifts, axes = op.ints(1, graph), op["axis"]
    for shift, axis in zip(shifts, axes, strict=True):
        size = graph.shapes[x][axis]
        head, tail = _split(x, [size - shift % size, shift % size], axis, op, graph)
        x = graph.add("Concat", [tail, head], shape=op.shape, axis=axis)
    return x


def _reshape(op: Op, graph: Graph, sizes: list[Any]) -> str:
    """One size is left to be worked out (-1): that which depends on the batch's, if there is one.

    Paddle forgets the other sizes where the batch's is a tensor; here they follow from the numbers per image.
    """
    x, before = op.inputs[0], graph.shapes[op.inputs[0]]
    own = Fraction(graph.multiples.get(x, 1))
    sizes = [_copied(before[index], own) if size == 0 else size for index, size in enumerate(sizes)]
    if len(op.shape) == len(sizes):
        sizes = [op.shape[i] if size == -1 and op.shape[i] != -1 else size for i, size in enumerate(sizes)]
    open_ = [index for index, size in enumerate(sizes) if not isinstance(size, int) or size == -1]
    batch = [index for index in open_ if isinstance(sizes[index], BatchSize)]
    known = Fraction(int(np.prod([size for i, size in enumerate(sizes) if i not in open_], dtype=np.int64)))
    total = Fraction(int(np.prod([size for size in before if size != -1], dtype=np.int64)))
    multiple = None
    if before.count(-1) == 1 and len(open_) == 1:
        multiple = own * total / known if known else own
    elif before.count(-1) == 1 and len(open_) == 2 and len(batch) == 1:
        multiple = sizes[batch[0]].factor
        (other,) = [index for index in open_ if index not in batch]
        size = own * total / known / multiple
        if size.denominator == 1 and sizes[other] == -1:
            sizes[other] = int(size)
            open_ = batch
    elif -1 not in before and len(open_) == 1 and sizes[open_[0]] == -1 and known:
        sizes[open_[0]] = int(total / known)
        open_ = []
    shape = [-1 if index in open_ else size for index, size in enumerate(sizes)]
    if len(open_) > 1:
        if None not in sizes and not batch:
            raise op.refuse("makes a shape of which more than the batch's size is unknown")
        return graph.add("Reshape", [x, op.tensor_of_ints(1, graph)], shape=shape)
    wanted = list(shape)
    if open_ == [0] and before[:1] == [-1] and multiple == own:
        wanted[0] = 0  # as it was
    y = graph.add("Reshape", [x, graph.constant(np.array(wanted, np.int64))], shape=shape)
    return _with_multiple(y, multiple, graph)


def _copied(size: int, multiple: Fraction) -> Any:
    return BatchSize(multiple) if size == -1 else size


def _with_multiple(name: str, multiple: Fraction | None, graph: Graph) -> str:
    """Note which multiple of the batch's size the tensor's open size is."""
    graph.multiples.pop(name, None)
    if multiple is not None and multiple != 1:
        graph.multiples[name] = multiple
    return name


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
        return _slice_of_sizes(x, axes, starts, ends, steps, dropped, graph)
    if not all(isinstance(number, int) for number in (*starts, *ends)):
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


def _slice_of_sizes(
    x: str,
    axes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    steps: Sequence[int],
    dropped: Sequence[int],
    graph: Graph,
) -> str:
    index = [slice(None)] * graph.partial[x].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, end, step)
    known = graph.partial[x][tuple(index)]
    numbers = [graph.constant(np.array(part, np.int64)) for part in (starts, ends, axes, steps)]
    part = graph.add_sizes("Slice", [x, *numbers], known)
    if not dropped:
        return part
    where = graph.constant(np.array(dropped, np.int64))
    return graph.add_sizes("Squeeze", [part, where], known.squeeze(tuple(dropped)))


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
