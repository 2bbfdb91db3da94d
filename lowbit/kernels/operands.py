"""The passes between fp32 tensors and small integers, on addresses of contiguous memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from lowbit.kernels.library import Kernels, kernels

_MOST_AXES = 4
_KEPT = 4096  # shapes; a step meets the same ones as the step before
_BLOCKS = (1, 2, 4, 8, 16, 32, 64)


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


@lru_cache(maxsize=_KEPT)
def _axes(shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> Axes:
    missing = _MOST_AXES - len(shape)
    fits = len(shape) == len(scale_shape) and all(
        s in (1, n) for n, s in zip(shape, scale_shape, strict=True)
    )
    if missing < 0 or not fits:
        raise ValueError(f"scales of shape {list(scale_shape)} do not fit a tensor of shape {list(shape)}")
    # Along an axis of size 1 it does not matter.
    return Axes((1,) * missing + shape, (False,) * missing + tuple(s != 1 for s in scale_shape))


class Integers(NamedTuple):
    """The integers of a grid; of a log grid 0, the powers of two up to the highest, and their negatives."""

    lowest: int
    highest: int
    log: bool = False


class Draw(NamedTuple):
    """What stochastic rounding takes its random numbers from: the fields of numerics.rounding.Stochastic."""

    seed: int
    step: int
    layer: int


class _Axes(ctypes.Structure):
    _fields_ = [("sizes", ctypes.c_int64 * _MOST_AXES), ("owns", ctypes.c_int32 * _MOST_AXES)]


class _Levels(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("lowest", "highest", "is_log")]


class _Draw(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("seed", "step", "layer")]


_ADDRESS, _SEEN, _NUMBER, _LONG = ctypes.c_void_p, ctypes.POINTER(_Axes), ctypes.c_int32, ctypes.c_int64
_SIGNATURES = {
    "lowbit_ranges": (None, [_ADDRESS] * 2 + [_SEEN, _NUMBER]),
    "lowbit_mse_ranges": (None, [_ADDRESS] * 2 + [_SEEN] + [_NUMBER] * 4),
    "lowbit_scales": (None, [_ADDRESS] * 2 + [_LONG] + [_NUMBER] * 2),
    "lowbit_to_integers": (
        _LONG,
        [_ADDRESS] * 3 + [_SEEN, ctypes.POINTER(_Levels), ctypes.POINTER(_Draw), _NUMBER, ctypes.c_uint64],
    ),
    "lowbit_from_integers": (None, [_ADDRESS] * 3 + [_SEEN, _NUMBER]),
    "lowbit_pack_nibbles": (None, [_ADDRESS] * 2 + [_LONG]),
    "lowbit_unpack_nibbles": (None, [_ADDRESS] * 2 + [_LONG, _NUMBER]),
    "lowbit_hadamard": (None, [_ADDRESS] * 2 + [_LONG] * 4),
}


class Operands:
    """The functions of csrc/operands.h, which says what they compute.

    They take addresses, such as `Tensor.data_ptr()` gives, of contiguous memory that the caller keeps alive:
    values, ranges and scales in fp32, integers in a byte each. Addresses are not checked.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    def ranges(self, x: int, ranges: int, axes: Axes, *, signed: bool = True) -> None:
        """The largest |x| of every group, or, not signed, the largest of 0 and x; NaN shows."""
        self._library.lowbit_ranges(x, ranges, _seen(axes), signed)

    def mse_ranges(
        self, x: int, ranges: int, axes: Axes, grid: Integers, *, turns: int = 1, known: bool = False
    ) -> None:
        """The ranges of the observer mse; where they are known, from the signed `ranges` that are there."""
        self._library.lowbit_mse_ranges(x, ranges, _seen(axes), grid.lowest, grid.highest, turns, known)

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

        Int8, or uint8 where the lowest is not below 0. `first` is the number of the first element, for the
        draws. What is NaN becomes 0; returned is how many values were.
        """
        count = len(draws)
        lowest, highest = grid.lowest * count, grid.highest * count
        if count > 2 or lowest < -128 or highest > (127 if grid.lowest < 0 else 255):
            raise ValueError(f"{count} draws of {grid} do not fit into a byte")
        drawn = (_Draw * count)(*draws)
        return self._library.lowbit_to_integers(x, q, scales, _seen(axes), _levels(grid), drawn, count, first)

    def from_integers(self, q: int, y: int, scales: int, axes: Axes, *, signed: bool) -> None:
        """q * scale, of int8 or, not signed, uint8."""
        self._library.lowbit_from_integers(q, y, scales, _seen(axes), signed)

    def pack_nibbles(self, q: int, packed: int, count: int) -> None:
        """Integers of 4 bits, two to a byte, the first in the lower half: (count + 1) // 2 bytes."""
        self._library.lowbit_pack_nibbles(q, packed, count)

    def unpack_nibbles(self, packed: int, q: int, count: int, *, signed: bool) -> None:
        """The other way."""
        self._library.lowbit_unpack_nibbles(packed, q, count, signed)

    def hadamard(self, x: int, y: int, before: int, size: int, after: int, block: int) -> None:
        """numerics.rotation.hadamard along the middle axis of [before, size, after]."""
        if block not in _BLOCKS or size % block:
            raise ValueError(
                f"an axis of {size} cannot be turned in blocks of {block}: {_BLOCKS} that divide it"
            )
        self._library.lowbit_hadamard(x, y, before, size, after, block)


@lru_cache(maxsize=_KEPT)
def _seen(axes: Axes) -> ctypes.Structure:
    return ctypes.byref(_Axes(axes.sizes, axes.owns))


@cache
def _levels(grid: Integers) -> ctypes.Structure:
    return ctypes.byref(_Levels(*grid))


@cache
def _bound(kernels_: Kernels) -> Operands:
    return Operands(kernels_.library)


def operands() -> Operands | None:
    """The passes; None where there are no kernels (lowbit.kernels.why_missing says why)."""
    found = kernels()
    return None if found is None else _bound(found)
