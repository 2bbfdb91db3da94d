"""fp32 to small integers and back, and fake quantization: the bindings of csrc/quantize/quantize.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from lowbit.kernels.library import ADDRESS, Kernels, Signatures, declare, kernels

_MOST_AXES = 4
_CACHED = 4096  # shapes: a training step meets the same ones as the step before
_BLOCKS = (1, 2, 4, 8, 16, 32, 64)


class Layout(NamedTuple):
    """A tensor as [outer, channels, inner], where a scale belongs to a channel."""

    outer: int
    channels: int
    inner: int


class Levels(NamedTuple):
    """A grid's ends, and whether bounds reach below 0."""

    lowest: int
    highest: int
    signed: bool


class Axes(NamedTuple):
    """The sizes of a tensor's axes, and which of them own scales; see `axes_of`."""

    sizes: tuple[int, int, int, int]
    owns: tuple[bool, bool, bool, bool]


def axes_of(shape: Sequence[int], scale_shape: Sequence[int]) -> Axes:
    """How scales of one shape lie along a tensor of another with as many axes, at most four.

    >>> axes_of([16, 64, 7, 7], [16, 1, 7, 7]).owns
    (True, False, True, True)
    """
    return _axes(tuple(shape), tuple(scale_shape))


@lru_cache(maxsize=_CACHED)
def _axes(shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> Axes:
    missing = _MOST_AXES - len(shape)
    fits = len(shape) == len(scale_shape) and all(
        s in (1, n) for n, s in zip(shape, scale_shape, strict=True)
    )
    if missing < 0 or not fits:
        raise ValueError(f"scales of shape {list(scale_shape)} do not fit a tensor of shape {list(shape)}")
    # Along an axis of size 1 it does not matter.
    n, c, h, w = (1,) * missing + shape
    owns_n, owns_c, owns_h, owns_w = (False,) * missing + tuple(s != 1 for s in scale_shape)
    return Axes((n, c, h, w), (owns_n, owns_c, owns_h, owns_w))


class Integers(NamedTuple):
    """The integers of a grid; of a log grid 0, the powers of two up to the highest, and their negatives."""

    lowest: int
    highest: int
    log: bool = False


class Draw(NamedTuple):
    """What the random numbers of stochastic rounding depend on, besides the element's index."""

    seed: int
    step: int
    layer: int


class MovingAverage(NamedTuple):
    """The rate of an average of ranges, and the addresses of its state: fp32, the counts int64."""

    rate: float
    state: int
    accum: int
    range: int
    entered: int
    left_out: int


class CLayout(ctypes.Structure):
    """lowbit_layout of csrc/common/channel_blocks.h."""

    _fields_ = [(name, ctypes.c_int64) for name in Layout._fields]


class _Grid(ctypes.Structure):
    _fields_ = [("lowest", ctypes.c_float), ("highest", ctypes.c_float), ("is_signed", ctypes.c_int32)]


class CAxes(ctypes.Structure):
    """lowbit_axes of csrc/common/grouped_axes.h."""

    _fields_ = [("sizes", ctypes.c_int64 * _MOST_AXES), ("owns", ctypes.c_int32 * _MOST_AXES)]


class CLevels(ctypes.Structure):
    """lowbit_levels of csrc/quantize/quantize.h."""

    _fields_ = [(name, ctypes.c_int32) for name in ("lowest", "highest", "is_log")]


class _MovingAverage(ctypes.Structure):
    _fields_ = [("rate", ctypes.c_float)] + [(name, ADDRESS) for name in MovingAverage._fields[1:]]


class CObserver(ctypes.Structure):
    """lowbit_observer of csrc/quantize/quantize.h; made by `observer`."""

    _fields_ = [
        ("alpha", ADDRESS),
        ("grid", _Grid),
        ("average", _MovingAverage),
        ("bound", ctypes.c_float),
        ("scale", ADDRESS),
    ]


def observer(alpha: int | None, levels: Levels, average: MovingAverage, scale: int) -> CObserver:
    """A quantizer of training with one scale; addresses of PACT's parameter, and where the scale goes."""
    return CObserver(alpha, _Grid(*levels), _MovingAverage(*average), 0.0, scale)


class CDraw(ctypes.Structure):
    """lowbit_draw of csrc/quantize/rounding.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("seed", "step", "layer")]


OBSERVER: Any = ctypes.POINTER(CObserver)
_AXES, _INT32, _INT64, _STATUS = ctypes.POINTER(CAxes), ctypes.c_int32, ctypes.c_int64, ctypes.c_int
_SIGNATURES: Signatures = {
    "lowbit_quantize": (_STATUS, [ADDRESS] * 4 + [CLayout, _Grid, _INT32]),
    "lowbit_quantize_grad": (_STATUS, [ADDRESS] * 6 + [CLayout, _Grid]),
    "lowbit_lsq_grad": (_STATUS, [ADDRESS] * 5 + [CLayout, _Grid]),
    "lowbit_drop_quantize": (
        _STATUS,
        [ADDRESS] * 3 + [CLayout, _Grid, ctypes.POINTER(CDraw), ctypes.c_uint32],
    ),
    "lowbit_drop_lsq_grad": (
        _STATUS,
        [ADDRESS] * 5 + [CLayout, _Grid, ctypes.POINTER(CDraw), ctypes.c_uint32],
    ),
    "lowbit_shift_channels": (_STATUS, [ADDRESS] * 3 + [CLayout]),
    "lowbit_channel_sums": (_STATUS, [ADDRESS] * 2 + [CLayout]),
    "lowbit_ranges": (_STATUS, [ADDRESS] * 2 + [_AXES, _INT32]),
    "lowbit_mse_ranges": (_STATUS, [ADDRESS] * 2 + [_AXES] + [_INT32] * 4),
    "lowbit_scales": (_STATUS, [ADDRESS] * 2 + [_INT64] + [_INT32] * 2),
    "lowbit_to_integers": (
        _INT64,
        [ADDRESS] * 3 + [_AXES, ctypes.POINTER(CLevels), ctypes.POINTER(CDraw), _INT32, ctypes.c_uint64],
    ),
    "lowbit_from_integers": (_STATUS, [ADDRESS] * 3 + [_AXES, _INT32]),
    "lowbit_observe_and_mark": (_INT64, [ADDRESS] * 4 + [_INT64, OBSERVER]),
    "lowbit_quantize_and_mark": (_INT64, [ADDRESS] * 6 + [_INT64, _Grid]),
    "lowbit_marked_grad": (_STATUS, [ADDRESS] * 4 + [_INT64]),
    "lowbit_to_dynamic_integers": (
        _INT64,
        [ADDRESS] * 3
        + [_AXES, ctypes.POINTER(CLevels), ADDRESS, _INT32, ctypes.c_float]
        + [ctypes.POINTER(CDraw), _INT32, ctypes.c_uint64],
    ),
    "lowbit_pack_nibbles": (_STATUS, [ADDRESS] * 2 + [_INT64]),
    "lowbit_unpack_nibbles": (_STATUS, [ADDRESS] * 2 + [_INT64, _INT32]),
    "lowbit_hadamard": (_STATUS, [ADDRESS] * 2 + [_INT64] * 4),
}


class QuantizeKernels:
    """The functions of csrc/quantize/quantize.h, which defines what they compute.

    They take addresses, such as `Tensor.data_ptr()` gives, of contiguous memory that the caller keeps alive:
    values, ranges and scales in fp32, integers in a byte each. None stands for "not wanted". Addresses are
    not checked.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        declare(library, _SIGNATURES)

    def quantize(
        self,
        x: int,
        y: int,
        scale: int,
        bound: int | None,
        layout: Layout,
        levels: Levels,
        *,
        integers: bool = False,
    ) -> None:
        """Fake quantization: values on the grid, or their integers, in fp32."""
        self._library.lowbit_quantize(x, y, scale, bound, CLayout(*layout), _Grid(*levels), integers)

    def quantize_grad(
        self,
        x: int,
        dy: int,
        dx: int | None,
        scale: int,
        bound: int | None,
        dbound: int | None,
        layout: Layout,
        levels: Levels,
    ) -> None:
        """The straight-through gradient, and that of PACT's bound."""
        self._library.lowbit_quantize_grad(x, dy, dx, scale, bound, dbound, CLayout(*layout), _Grid(*levels))

    def lsq_grad(
        self, x: int, dy: int, dx: int | None, step: int, dstep: int | None, layout: Layout, levels: Levels
    ) -> None:
        """LSQ's gradients; that of the step is not yet multiplied by its gradient scale."""
        self._library.lowbit_lsq_grad(x, dy, dx, step, dstep, CLayout(*layout), _Grid(*levels))

    def drop_quantize(
        self, x: int, y: int, scale: int, layout: Layout, levels: Levels, draw: Draw, threshold: int
    ) -> None:
        """Fake quantization of the values whose random number of 24 bits is not below the threshold."""
        self._library.lowbit_drop_quantize(
            x, y, scale, CLayout(*layout), _Grid(*levels), CDraw(*draw), threshold
        )

    def drop_lsq_grad(
        self,
        x: int,
        dy: int,
        dx: int,
        step: int,
        dstep: int,
        layout: Layout,
        levels: Levels,
        draw: Draw,
        threshold: int,
    ) -> None:
        """Its gradients, of LSQ; that of the step is not yet multiplied by its gradient scale."""
        self._library.lowbit_drop_lsq_grad(
            x, dy, dx, step, dstep, CLayout(*layout), _Grid(*levels), CDraw(*draw), threshold
        )

    def shift_channels(self, x: int, y: int, by: int, layout: Layout) -> None:
        """x + by, a number per channel."""
        self._library.lowbit_shift_channels(x, y, by, CLayout(*layout))

    def channel_sums(self, dy: int, sums: int, layout: Layout) -> None:
        """The sum over each channel."""
        self._library.lowbit_channel_sums(dy, sums, CLayout(*layout))

    def ranges(self, x: int, ranges: int, axes: Axes, *, signed: bool = True) -> None:
        """The largest |x| of every group, or, if not signed, the largest of 0 and x; NaN where x has one."""
        self._library.lowbit_ranges(x, ranges, _c_axes(axes), signed)

    def mse_ranges(
        self, x: int, ranges: int, axes: Axes, grid: Integers, *, turns: int = 1, known: bool = False
    ) -> None:
        """The ranges of the observer mse; if `known`, `ranges` holds the signed largest magnitudes."""
        self._library.lowbit_mse_ranges(x, ranges, _c_axes(axes), grid.lowest, grid.highest, turns, known)

    def scales(self, ranges: int, scales: int, count: int, grid: Integers) -> None:
        """The scales with which ranges are the grid's highest integer."""
        self._library.lowbit_scales(ranges, scales, count, grid.lowest, grid.highest)

    def to_integers(
        self,
        x: int,
        q: int,
        scales: int,
        axes: Axes,
        grid: Integers,
        draws: Sequence[Draw] = (),
        *,
        first: int = 0,
    ) -> int:
        """The integers nearest to x / scale, or chosen at random by a draw; the sum of both for two draws.

        Int8, or uint8 where the lowest is not negative. `first` is the number of the first element, for the
        draws. NaN becomes 0; returns how many values were NaN.
        """
        drawn = _drawn(grid, draws)
        return self._library.lowbit_to_integers(
            x, q, scales, _c_axes(axes), _levels(grid), drawn, len(draws), first
        )

    def quantize_and_mark(
        self,
        x: int,
        y: int | None,
        q: int | None,
        clipped: int,
        scale: int,
        bound: int | None,
        count: int,
        levels: Levels,
    ) -> int:
        """Values of `quantize` for one scale, or bytes, and marks for `marked_grad`; the count of NaNs."""
        return self._library.lowbit_quantize_and_mark(x, y, q, clipped, scale, bound, count, _Grid(*levels))

    def observe_and_mark(
        self,
        x: int,
        y: int | None,
        q: int | None,
        clipped: int,
        count: int,
        by: CObserver,
    ) -> int:
        """Enters the range of x into an average; then `quantize_and_mark` with the scale that this gives."""
        return self._library.lowbit_observe_and_mark(x, y, q, clipped, count, by)

    def marked_grad(self, dy: int, clipped: int, dx: int | None, dbound: int | None, count: int) -> None:
        """What `quantize_grad` computes; dX may be dY."""
        self._library.lowbit_marked_grad(dy, clipped, dx, dbound, count)

    def to_dynamic_integers(
        self,
        x: int,
        q: int,
        scales: int,
        axes: Axes,
        grid: Integers,
        draws: Sequence[Draw] = (),
        *,
        first: int = 0,
        largest: int | None = None,
        turns: int = 0,
        ratio: float = 1.0,
    ) -> int:
        """`ranges` times `ratio`, or with `turns` `mse_ranges`, `scales` and `to_integers` in one call.

        `largest` are the magnitudes of every [n, c], where these are known. Returns how many values were NaN.
        """
        return self._library.lowbit_to_dynamic_integers(
            *(x, q, scales, _c_axes(axes), _levels(grid), largest, turns, ratio),
            *(_drawn(grid, draws), len(draws), first),
        )

    def from_integers(self, q: int, y: int, scales: int, axes: Axes, *, signed: bool) -> None:
        """q * scale, of int8 or, not signed, uint8."""
        self._library.lowbit_from_integers(q, y, scales, _c_axes(axes), signed)

    def pack_nibbles(self, q: int, packed: int, count: int) -> None:
        """Integers of 4 bits, two to a byte, the first in the lower half: (count + 1) // 2 bytes."""
        self._library.lowbit_pack_nibbles(q, packed, count)

    def unpack_nibbles(self, packed: int, q: int, count: int, *, signed: bool) -> None:
        """The inverse of `pack_nibbles`."""
        self._library.lowbit_unpack_nibbles(packed, q, count, signed)

    def hadamard(self, x: int, y: int, before: int, size: int, after: int, block: int) -> None:
        """The Walsh-Hadamard transform of blocks along the middle axis of [before, size, after]."""
        if block not in _BLOCKS or size % block:
            raise ValueError(
                f"an axis of {size} cannot be transformed in blocks of {block}: use {_BLOCKS} that divide it"
            )
        self._library.lowbit_hadamard(x, y, before, size, after, block)


def _drawn(grid: Integers, draws: Sequence[Draw]) -> Any:
    """The draws as an array; an error where the sum of their integers does not fit into a byte."""
    if not draws:
        return None
    count = len(draws)
    check_draws(grid, count)
    kind: Any = CDraw * count
    return kind(*draws)


def check_draws(grid: Integers, count: int) -> None:
    """An error where a byte does not hold the sum of so many draws."""
    lowest, highest = grid.lowest * count, grid.highest * count
    if count > 2 or lowest < -128 or highest > (127 if grid.lowest < 0 else 255):
        raise ValueError(f"{count} draws of {grid} do not fit into a byte")


@lru_cache(maxsize=_CACHED)
def _c_axes(axes: Axes) -> Any:
    return ctypes.byref(CAxes(axes.sizes, axes.owns))


@cache
def _levels(grid: Integers) -> Any:
    return ctypes.byref(CLevels(*grid))


@cache
def _bound(kernels_: Kernels) -> QuantizeKernels:
    return QuantizeKernels(kernels_.library)


def quantize_kernels() -> QuantizeKernels | None:
    """The functions; None where there are no kernels (lowbit.kernels.why_missing says why)."""
    found = kernels()
    return None if found is None else _bound(found)
