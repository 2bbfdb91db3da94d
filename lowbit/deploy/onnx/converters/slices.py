"""Converters of operators that cut tensors and join them: slice, split, concat, pad, roll, set_value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import Graph

_FAR = 2**31 - 1  # Paddle's end of a slice that goes to the end


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


@converts("unbind")
def unbind(op: Op, graph: Graph) -> Result:
    x, axis = op.inputs[0], op["axis"]
    shape = graph.shapes[x]
    where = graph.constant(np.array([axis % len(shape)], np.int64))
    rest = [size for i, size in enumerate(shape) if i != axis % len(shape)]
    parts = _split(x, [1] * shape[axis], axis, op, graph)
    return [graph.add("Squeeze", [part, where], shape=rest) for part in parts]


@converts("slice")
def slice_(op: Op, graph: Graph) -> Result:
    x, starts, ends = op.inputs[0], op.ints(1, graph), op.ints(2, graph)
    return _slice(x, op["axes"], starts, ends, [1] * len(starts), op["decrease_axis"], op, graph)


@converts("strided_slice")
def strided_slice(op: Op, graph: Graph) -> Result:
    starts, ends, steps = (op.ints(index, graph) for index in (1, 2, 3))
    return _slice(op.inputs[0], op["axes"], starts, ends, steps, [], op, graph)


@converts("set_value", "set_value_")
def set_value(op: Op, graph: Graph) -> Result:
    """`x[:, 1:3] = 0.5`: numbers from the model's code."""
    value = graph.constant(np.array(op["values"], op.type).reshape(op["shape"]))
    return _set_value(op.inputs[0], value, [op.ints(index, graph) for index in (1, 2, 3)], op, graph)


@converts("set_value_with_tensor", "set_value_with_tensor_")
def set_value_with_tensor(op: Op, graph: Graph) -> Result:
    """`x[:, 1:3] = y`, also `x[:, 1:3] += y`."""
    x, value = op.inputs[:2]
    return _set_value(x, value, [op.ints(index, graph) for index in (2, 3, 4)], op, graph)


@converts("flip")
def flip(op: Op, graph: Graph) -> Result:
    axes = op["axis"]
    ends = ([-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))
    return graph.add(
        "Slice", [op.inputs[0], *(graph.constant(np.array(one, np.int64)) for one in ends)], shape=op.shape
    )


@converts("roll")
def roll(op: Op, graph: Graph) -> Result:
    x = op.inputs[0]
    shifts, axes = op.ints(1, graph), op["axis"]
    for shift, axis in zip(shifts, axes, strict=True):
        size = graph.shapes[x][axis]
        head, tail = _split(x, [size - shift % size, shift % size], axis, op, graph)
        x = graph.add("Concat", [tail, head], shape=op.shape, axis=axis)
    return x


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


def _sizes(name: str, op: Op, graph: Graph) -> np.ndarray:
    value = graph.known(name)
    if value is None:
        raise op.refuse("joins sizes with numbers that are computed from the images")
    return value.astype(object)


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
        graph.shapes[name] = _resized(shape, axis % len(shape), size)
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


def _set_value(x: str, value: str, bounds: list[list[Any]], op: Op, graph: Graph) -> str:
    """`x` with `value` at the positions that `bounds`, the starts, ends and steps of `axes`, choose."""
    if op["none_axes"]:
        raise op.refuse("assigns to an index with None")
    positions: dict[int, range] = {}
    for axis, *bound in zip(op["axes"], *bounds, strict=True):
        size = graph.shapes[x][axis]
        if size == -1 and bound[0] == 0 and bound[2] == 1 and bound[1] >= _FAR:
            continue  # every image of the batch
        if size == -1 or not all(isinstance(number, int) for number in bound):
            raise op.refuse("assigns to positions that depend on the batch's size")
        positions[axis] = range(size)[slice(*bound)]
    dropped = op["decrease_axes"]
    if dropped and graph.shapes[value]:
        # Axes of a single index, which `value` lacks, counted from the end: it may lack leading axes too.
        rank, inner = len(graph.shapes[x]), len(graph.shapes[value])
        kept = [axis for axis in range(rank) if axis not in dropped][-inner:]
        first = kept[0]
        wide = [graph.shapes[value][kept.index(axis)] if axis in kept else 1 for axis in range(first, rank)]
        at = graph.constant(np.array([axis - first for axis in dropped if axis > first], np.int64))
        value = graph.add("Unsqueeze", [value, at], shape=wide) if len(wide) > inner else value
    return _put(x, value, sorted(positions.items()), op, graph)


def _put(x: str, value: str, positions: list[tuple[int, range]], op: Op, graph: Graph) -> str:
    """One axis after the other: what is at its positions is cut out, changed and put back."""
    shape = graph.shapes[x]
    if not positions:
        if graph.shapes[value] == shape:
            return value
        sizes = graph.add("Shape", [x], shape=[len(shape)])
        return graph.add("Expand", [value, sizes], shape=shape)
    (axis, chosen), *rest = positions
    if not chosen:
        return x
    if chosen.step == 1:
        new = _put(_cut(x, axis, chosen.start, chosen.stop, graph), value, rest, op, graph)
        ends = [(0, chosen.start), (chosen.stop, shape[axis])]
        before, after = ([_cut(x, axis, *end, graph)] if end[0] < end[1] else [] for end in ends)
        return graph.add("Concat", [*before, new, *after], shape=shape, axis=axis)
    index = graph.constant(np.array(chosen, np.int64))
    old = graph.add("Gather", [x, index], shape=_resized(shape, axis, len(chosen)), axis=axis)
    new = _put(old, value, rest, op, graph)
    # The new ones behind the old: each position takes its number from one or the other.
    source = np.arange(shape[axis])
    source[chosen] = shape[axis] + np.arange(len(chosen))
    both = graph.add("Concat", [x, new], shape=_resized(shape, axis, shape[axis] + len(chosen)), axis=axis)
    return graph.add("Gather", [both, graph.constant(source)], shape=shape, axis=axis)


def _cut(x: str, axis: int, start: int, end: int, graph: Graph) -> str:
    """`x[start:end]` along one axis."""
    shape = graph.shapes[x]
    if (start, end) == (0, shape[axis]):
        return x
    bounds = [graph.constant(np.array([number], np.int64)) for number in (start, end, axis)]
    return graph.add("Slice", [x, *bounds], shape=_resized(shape, axis, end - start))


def _resized(shape: Sequence[int], axis: int, size: int) -> list[int]:
    return [size if i == axis else s for i, s in enumerate(shape)]


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
        parts = [_cut(x, axis, start, end, graph) for start, end in pieces]
        shape = _resized(graph.shapes[x], axis, size + before + after)
        x = graph.add("Concat", parts, shape=shape, axis=axis)
    return x
