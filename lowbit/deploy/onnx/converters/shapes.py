"""Converters of operators that give a tensor another shape: reshape, transpose, squeeze, expand, tile."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from lowbit.deploy.onnx.converters.registry import Op, Result, converts
from lowbit.deploy.onnx.graph import BatchSize, Graph


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


def _reshape(op: Op, graph: Graph, sizes: list[Any]) -> str:
    """One size is left to be worked out (-1): that which depends on the batch's, if there is one.

    Paddle forgets the other sizes where the batch's is a tensor; here they follow from the numbers per image.
    """
    x, before = op.inputs[0], graph.shapes[op.inputs[0]]
    own = Fraction(graph.multiples.get(x, 1))
    kept = {index for index, size in enumerate(sizes) if size == 0}
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
    if len(open_) > 1 and [sizes[index] for index in open_ if index not in kept] in ([], [-1]):
        as_it_was = [0 if index in kept else size for index, size in enumerate(shape)]
        y = graph.add("Reshape", [x, graph.constant(np.array(as_it_was, np.int64))], shape=shape)
        return _with_multiple(y, graph.multiples.get(x) if 0 in kept else None, graph)
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


def _with_axes(kind: str, op: Op, graph: Graph, axes: list[int]) -> str:
    return graph.add(kind, [op.inputs[0], graph.constant(np.array(axes, np.int64))], shape=op.shape)
