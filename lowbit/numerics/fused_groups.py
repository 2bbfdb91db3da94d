"""Ranges, scales and integers of groups of any granularity in one pass each, by the C++ kernels.

None is returned for what plain operators have to do, which are the twins: programs being exported, other
types and devices, more than four axes, memory that is not contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import paddle
from paddle import Tensor

from lowbit.kernels.quantization import Axes, Draw, Integers, QuantizeKernels, axes_of, quantize_kernels
from lowbit.numerics.fused import is_plain_memory, new_tensor
from lowbit.numerics.granularity import shape_of_scales
from lowbit.numerics.grid import Grid
from lowbit.numerics.rounding import Rounding, Stochastic

_MOST_AXES = 4
_PIXELS = (2, 3)
_WORTH_IT = 128  # pixels: with fewer, a range of every channel of every image takes as long as reading twice


class ChannelRanges:
    """max |x| of every channel of every image of one tensor, computed at first use.

    For a function that needs ranges of the same tensor for several granularities: it reads the tensor once
    and passes this on as an argument, or knows `largest`, [images, channels, 1, 1], already. The tensor must
    not change meanwhile.

    known = ChannelRanges(dy)
    observer.range(dy, grid, (0, 2, 3), known=known)
    """

    def __init__(self, x: Tensor, largest: Tensor | None = None) -> None:
        self._x, self._largest = x, largest

    def of(self, axes: Sequence[int]) -> Tensor | None:
        """max |x| of every group along `axes`; None where reading the tensor itself is as good."""
        largest = self.largest(axes)
        kernels = None if largest is None else _kernels(largest)
        return None if kernels is None else _read(kernels, largest, axes)

    def largest(self, axes: Sequence[int]) -> Tensor | None:
        """max |x| of every channel of every image, if groups along `axes` are made of it; None as above."""
        if not {*_PIXELS} <= {*axes} or len(self._x.shape) != _MOST_AXES:
            return None
        if self._largest is None:
            kernels = _kernels(self._x)
            if kernels is None or math.prod(self._x.shape[2:]) < _WORTH_IT:
                return None
            self._largest = _read(kernels, self._x, _PIXELS)
        return self._largest


def ranges(x: Tensor, axes: Sequence[int], *, signed: bool = True) -> Tensor | None:
    """max |x| of every group along `axes`, or, not signed, the largest of 0 and x; NaN shows."""
    kernels = _kernels(x)
    return None if kernels is None else _read(kernels, x, axes, signed)


def mse_ranges(
    x: Tensor, grid: Grid, axes: Sequence[int], turns: int, start: Tensor | None = None
) -> Tensor | None:
    """What `observers.mse_range` computes; `start` is max |x| of every group, where it is known."""
    kernels = _kernels(x)
    if kernels is None or grid.midrise:  # the kernels round to every integer, or to powers of two
        return None
    shape, seen = groups_along(tuple(x.shape), tuple(axes))
    found = new_tensor(shape) if start is None else start
    at = (x.data_ptr(), found.data_ptr())
    kernels.mse_ranges(*at, seen, integers_of(grid), turns=turns, known=start is not None)
    return found


def scales(ranges_: Tensor, grid: Grid) -> Tensor | None:
    """What `scale.scale_from_range` computes."""
    kernels = _kernels(ranges_)
    if kernels is None:
        return None
    shape = ranges_.shape
    found = new_tensor(shape)
    kernels.scales(ranges_.data_ptr(), found.data_ptr(), math.prod(shape), integers_of(grid))
    return found


def to_bytes(
    x: Tensor, scale: Tensor, grid: Grid, roundings: Sequence[Rounding | None]
) -> tuple[Tensor, int] | None:
    """The integers, or the sums of those of two roundings, a byte each; and how many values were NaN."""
    kernels = _kernels(x, scale)
    shape, scale_shape = x.shape, scale.shape
    if kernels is None or len(scale_shape) != len(shape):
        return None
    drawn = _draws(grid, roundings)
    if drawn is None:
        return None
    draws, first = drawn
    q = new_tensor(shape, "int8" if grid.signed else "uint8")
    at = (x.data_ptr(), q.data_ptr(), scale.data_ptr())
    broken = kernels.to_integers(*at, axes_of(shape, scale_shape), integers_of(grid), draws, first=first)
    return q, broken


def _draws(grid: Grid, roundings: Sequence[Rounding | None]) -> tuple[list[Draw], int] | None:
    """What the kernels draw, and the number of the first element; None for what they cannot round."""
    draws = [Draw(r.seed, r.step, r.layer) for r in roundings if isinstance(r, Stochastic)]
    count = len(roundings)
    if len(draws) not in (0, count) or (not draws and count > 1) or not _sums_fit(grid, count):
        return None
    return draws, roundings[0].first if draws else 0


@lru_cache(maxsize=256)
def _sums_fit(grid: Grid, count: int) -> bool:
    """Whether a byte holds the sum of so many integers of a grid that the kernels can round to."""
    highest = 127 if grid.signed else 255
    return not grid.midrise and grid.lowest * count >= -128 and grid.highest * count <= highest


class DynamicBytes(NamedTuple):
    """Values that are yet to be quantized, with scales from the ranges of groups along `axes`."""

    x: Tensor
    grid: Grid
    axes: tuple[int, ...]
    draws: list[Draw]
    first: int  # the number of the first element, for the draws
    turns: int  # those of `mse_ranges`; 0: the ranges are the largest magnitudes
    ratio: float  # times this, without turns
    largest: Tensor | None  # of every channel of every image, where they are known

    def compute(self) -> tuple[Tensor, Tensor, int]:
        """What `to_bytes` gives with these scales: the integers; the scales; how many values were NaN."""
        shape = tuple(self.x.shape)
        scale_shape, seen = groups_along(shape, self.axes)
        scale, q = new_tensor(scale_shape), new_tensor(shape, "int8" if self.grid.signed else "uint8")
        broken = quantize_kernels().to_dynamic_integers(
            *(self.x.data_ptr(), q.data_ptr(), scale.data_ptr(), seen, integers_of(self.grid), self.draws),
            first=self.first,
            largest=None if self.largest is None else self.largest.data_ptr(),
            turns=self.turns,
            ratio=self.ratio,
        )
        return q, scale, broken


def dynamic_bytes(
    x: Tensor,
    grid: Grid,
    axes: tuple[int, ...],
    roundings: Sequence[Rounding | None] = (None,),
    *,
    turns: int = 0,
    ratio: float = 1.0,
    known: ChannelRanges | None = None,
) -> DynamicBytes | None:
    """`x` as kernels quantize it in one call; `known` are the ranges of this same `x`."""
    drawn = _draws(grid, roundings)
    if drawn is None or _kernels(x) is None:
        return None
    largest = None if known is None else known.largest(axes)
    return DynamicBytes(x, grid, axes, *drawn, turns, ratio, largest)


def to_dynamic_bytes(
    x: Tensor,
    grid: Grid,
    axes: Sequence[int],
    roundings: Sequence[Rounding | None] = (None,),
    *,
    turns: int = 0,
    ratio: float = 1.0,
    known: ChannelRanges | None = None,
) -> tuple[Tensor, Tensor, int] | None:
    """The integers of `dynamic_bytes`, their scales, and how many values were NaN."""
    found = dynamic_bytes(x, grid, tuple(axes), roundings, turns=turns, ratio=ratio, known=known)
    return None if found is None else found.compute()


def from_bytes(q: Tensor, scale: Tensor) -> Tensor | None:
    """The values of integers of a byte: q * scale."""
    kernels, shape, scale_shape = _kernels(scale), q.shape, scale.shape
    if kernels is None or len(scale_shape) != len(shape) or 0 in shape:
        return None
    if q.dtype not in (paddle.int8, paddle.uint8) or not q.place.is_cpu_place() or not q.is_contiguous():
        return None
    y = new_tensor(shape)
    kernels.from_integers(
        *(q.data_ptr(), y.data_ptr(), scale.data_ptr()),
        axes_of(shape, scale_shape),
        signed=q.dtype == paddle.int8,
    )
    return y


def hadamard(x: Tensor, axis: int, block: int) -> Tensor | None:
    """What `hadamard.hadamard_transform` computes."""
    kernels = _kernels(x)
    if kernels is None or not x.stop_gradient:  # a gradient comes through operators
        return None
    y, shape = new_tensor(x.shape), x.shape
    around = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    kernels.hadamard(x.data_ptr(), y.data_ptr(), *around, block)
    return y


def _read(kernels: QuantizeKernels, x: Tensor, axes: Sequence[int], signed: bool = True) -> Tensor:
    shape, seen = groups_along(tuple(x.shape), tuple(axes))
    found = new_tensor(shape)
    kernels.ranges(x.data_ptr(), found.data_ptr(), seen, signed=signed)
    return found


@lru_cache(maxsize=256)
def integers_of(grid: Grid) -> Integers:
    """The grid as the kernels take it."""
    return Integers(grid.lowest, grid.highest, grid.logarithmic)


@lru_cache(maxsize=4096)
def groups_along(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[list[int], Axes]:
    """The scales' shape where groups lie along `axes`, and how they lie along the tensor."""
    scale_shape = shape_of_scales(shape, axes)
    return scale_shape, axes_of(shape, scale_shape)


def _kernels(*tensors: Tensor) -> QuantizeKernels | None:
    """The kernels, if they can take the values of all of these."""
    if not paddle.in_dynamic_mode():
        return None
    for x in tensors:
        if not isinstance(x, Tensor) or not is_plain_memory(x):
            return None
        shape = x.shape
        if len(shape) > _MOST_AXES or 0 in shape:
            return None
    return quantize_kernels()
