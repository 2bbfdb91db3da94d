"""Ranges, scales and integers of groups of any granularity in one pass each, by the C++ kernels.

None is returned for what plain operators have to do, which are the twins: programs being exported, other
types and devices, more than four axes, memory that is not contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle
from paddle import Tensor

from lowbit.kernels.operands import Draw, Integers, Operands, axes_of, operands
from lowbit.numerics.grid import Grid
from lowbit.numerics.groups import shape_of_scales
from lowbit.numerics.new_tensor import new_tensor
from lowbit.numerics.noted_ranges import noted_ranges
from lowbit.numerics.rounding import Rounding, Stochastic

_MOST_AXES = 4


def ranges(x: Tensor, axes: Sequence[int], *, signed: bool = True) -> Tensor | None:
    """max |x| of every group along `axes`, or, not signed, the largest of 0 and x; NaN shows."""
    kernels = _kernels(x)
    if kernels is None:
        return None
    shape = shape_of_scales(x.shape, axes)
    found = paddle.empty(shape, "float32")
    if signed and x.ndim == _MOST_AXES and (noted := noted_ranges(x, axes)) is not None:
        x = noted
    kernels.ranges(x.data_ptr(), found.data_ptr(), axes_of(x.shape, shape), signed=signed)
    return found


def mse_ranges(x: Tensor, grid: Grid, axes: Sequence[int], turns: int) -> Tensor | None:
    """What lowbit.numerics.mse computes."""
    found = ranges(x, axes)
    if found is not None:
        seen = axes_of(x.shape, found.shape)
        operands().mse_ranges(x.data_ptr(), found.data_ptr(), seen, _integers(grid), turns=turns)
    return found


def scales(ranges_: Tensor, grid: Grid) -> Tensor | None:
    """What lowbit.numerics.scale computes from ranges."""
    kernels = _kernels(ranges_)
    if kernels is None:
        return None
    found = paddle.empty_like(ranges_)
    kernels.scales(ranges_.data_ptr(), found.data_ptr(), ranges_.size, _integers(grid))
    return found


def to_bytes(
    x: Tensor, scale: Tensor, grid: Grid, roundings: Sequence[Rounding | None]
) -> tuple[Tensor, int] | None:
    """The integers, or the sums of those of two roundings, a byte each; and how many values were NaN."""
    kernels = _kernels(x)
    draws = [rounding for rounding in roundings if isinstance(rounding, Stochastic)]
    if kernels is None or _kernels(scale) is None or scale.ndim != x.ndim:
        return None
    if len(draws) not in (0, len(roundings)) or (not draws and len(roundings) > 1):
        return None
    lowest, highest = grid.lowest * len(roundings), grid.highest * len(roundings)
    if lowest < -128 or highest > (127 if grid.signed else 255):
        return None
    q = new_tensor(x.shape, "int8" if grid.signed else "uint8")
    broken = kernels.to_integers(
        *(x.data_ptr(), q.data_ptr(), scale.data_ptr()),
        axes_of(x.shape, scale.shape),
        _integers(grid),
        [Draw(draw.seed, draw.step, draw.layer) for draw in draws],
        first=draws[0].first if draws else 0,
    )
    return q, broken


def from_bytes(q: Tensor, scale: Tensor) -> Tensor | None:
    """The values of integers of a byte: q * scale."""
    if q.dtype not in (paddle.int8, paddle.uint8) or q.ndim > _MOST_AXES or 0 in q.shape:
        return None
    if _kernels(scale) is None or scale.ndim != q.ndim or not q.place.is_cpu_place() or not q.is_contiguous():
        return None
    y = new_tensor(q.shape)
    operands().from_integers(
        *(q.data_ptr(), y.data_ptr(), scale.data_ptr()),
        axes_of(q.shape, scale.shape),
        signed=q.dtype == paddle.int8,
    )
    return y


def _integers(grid: Grid) -> Integers:
    return Integers(grid.lowest, grid.highest, grid.logarithmic)


def _kernels(x: Tensor) -> Operands | None:
    if not paddle.in_dynamic_mode() or not isinstance(x, Tensor) or x.ndim > _MOST_AXES or 0 in x.shape:
        return None
    plain = x.dtype == paddle.float32 and x.place.is_cpu_place() and x.is_contiguous()
    return operands() if plain else None
