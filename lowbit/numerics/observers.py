"""Observers, which choose a range from values; initial values of learned steps and bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import Tensor

from lowbit.numerics import fused_groups
from lowbit.numerics.exact import as_float32, divide, multiply, subtract
from lowbit.numerics.fake_quant import clip_to_bound, quantize_to_integers, usable_bound
from lowbit.numerics.fused_groups import ChannelRanges
from lowbit.numerics.granularity import largest_magnitude, require_values, shape_of_scales, sum_groups
from lowbit.numerics.grid import Grid
from lowbit.numerics.histogram_observers import hist_range, kl_range, percentile_range, sensitivity_range
from lowbit.numerics.scale import SMALLEST_SCALE, largest_scale, nan_where_not_finite, scale_from_range
from lowbit.numerics.spec_parser import Kind, join_word, name_and_number

_STOP = 1e-6
_RATIO = 0.5  # of clip_ratio, unless it says another
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def mse_range(
    x: Tensor, grid: Grid, axes: Sequence[int], iterations: float | None, start: Tensor | None = None
) -> Tensor:
    """The observer `mse`: the range whose scale has the least squared error, found iteratively.

    From the scale of minmax, q = clip(round(x / scale)), then scale = <x, q> / <q, q>, which is best for that
    q; and again, `iterations` times, fewer for a group whose range changes by 1e-6 or less. The sums are of
    integers, so they do not depend on the order of adding: however a tensor is split, the bits are the same.

    In a turn, with s the scale of minmax, 2^b >= |q| for all q of the grid, and f = 30 - 2b fraction bits:

        i = round(x / s * 2^f)                             in 32 bits, and so is i * q
        ratio = fp32(sum(i * q) / sum(q * q)) * 2^-f       the division in fp64
        range = (s * highest) * ratio                      in fp32, at most the largest float

    A group whose q are all 0 keeps its range, which happens to denormal numbers only. `start` is max |x| of
    every group, where the caller knows it; the kernel writes over it.
    """
    turns = _turns(iterations)
    if turns > 1:  # when to stop depends on the values
        require_values(x, f"mse({turns})")
    found = fused_groups.mse_ranges(x, grid, axes, turns, start)
    if found is not None:
        return found
    range_ = largest_magnitude(x, axes)
    start = scale_from_range(range_, grid)
    fraction_bits = 30 - 2 * (max(-grid.lowest, grid.highest) - 1).bit_length()
    fixed_point = paddle.round(multiply(divide(x, start), _number(2.0**fraction_bits))).cast("int32")
    at_start = multiply(start, _number(grid.highest))
    moving = paddle.isfinite(range_)
    for turn in range(turns):
        q = quantize_to_integers(x, scale_from_range(range_, grid), grid).cast("int32")
        ratio = multiply(_projection(fixed_point, q, axes), _number(2.0**-fraction_bits))
        best = paddle.clip(multiply(at_start, ratio), max=_LARGEST_FLOAT)
        before, range_ = range_, paddle.where(moving & (best > 0), best, range_)
        if turn + 1 < turns:
            moving = moving & (paddle.abs(subtract(range_, before)) > multiply(before, _number(_STOP)))
            if not bool(moving.any()):
                break
    return range_


def _turns(iterations: float | None) -> int:
    return int(iterations or 1)


def _projection(x: Tensor, q: Tensor, axes: Sequence[int]) -> Tensor:
    """<x, q> / <q, q> of integers, fp32."""
    along = sum_groups(multiply(x, q), axes, "int64").cast("float64")
    square = sum_groups(multiply(q, q), axes, "int64").cast("float64")
    # No product in fp64: in a served program, oneDNN gives nonsense for it (Paddle 3.3).
    return divide(along, paddle.maximum(square, paddle.ones_like(square))).cast("float32")


def _number(value: float) -> Tensor:
    return paddle.full([], value, "float32")


def _minmax_range(x: Tensor, grid: Grid, axes: Sequence[int], parameter: float | None) -> Tensor:
    largest = fused_groups.ranges(x, axes)
    return largest_magnitude(x, axes) if largest is None else largest


def _clip_ratio_range(x: Tensor, grid: Grid, axes: Sequence[int], ratio: float | None) -> Tensor:
    return multiply(_minmax_range(x, grid, axes, None), _number(_ratio(ratio)))


def _ratio(parameter: float | None) -> float:
    return _RATIO if parameter is None else parameter


OBSERVERS: dict[str, Kind] = {
    "minmax": Kind(_minmax_range),
    "clip_ratio": Kind(
        _clip_ratio_range,
        _RATIO,
        "a share of the largest magnitude, from 0.01 to 1",
        lambda ratio: 0.01 <= ratio <= 1,
    ),
    "mse": Kind(mse_range, None, "iterations, from 1 to 50", lambda n: n in range(1, 51)),
    "percentile": Kind(percentile_range, 99.99, "a percentage, from 50 to 100", lambda p: 50 <= p <= 100),
    "kl": Kind(kl_range),
    "hist": Kind(hist_range),
    "sensitivity": Kind(sensitivity_range),
}


@dataclass(frozen=True)
class Observer:
    """A way to choose scales, called with values, a grid and the axes that share a scale.

    >>> x = paddle.to_tensor([[1.0, -7.0], [0.0, 14.0]])
    >>> parse_observer("minmax")(x, parse_grid("int4"), axes=(1,)).tolist()
    [[1.0], [2.0]]
    """

    name: str
    parameter: float | None = None

    def __call__(self, x: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
        """The scales, fp32, with size 1 along `axes`."""
        return scale_from_range(self.range(x, grid, axes), grid)

    @paddle.jit.not_to_static
    def range(
        self,
        x: Tensor,
        grid: Grid,
        axes: Sequence[int],
        *,
        bound: Tensor | None = None,
        known: ChannelRanges | None = None,
    ) -> Tensor:
        """The largest magnitudes to keep, fp32: what an average over batches is taken of.

        0 where every value of a group is 0 or there is none, not finite where a value is not. With `bound`
        those of the values that PACT clips at it: a bound is one number, or one per group or several groups.
        `known` are the ranges of this same `x`, from which minmax, clip_ratio and mse start.
        """
        x = as_float32(x.detach())
        axes = tuple(axes)
        if 0 in x.shape:
            return paddle.zeros(shape_of_scales(x.shape, axes), "float32")
        if bound is not None:
            largest = None
            if self.name == "minmax":
                largest = fused_groups.ranges(x, axes, signed=grid.signed)
            if largest is not None:  # the bound is the same for a whole group
                return paddle.minimum(largest, usable_bound(bound.detach()))
            x = clip_to_bound(x, bound.detach(), signed=grid.signed)
        elif known is not None and self.turns is not None:
            start = known.of(axes)
            if start is not None:
                if self.turns:
                    return mse_range(x, grid, axes, self.parameter, start)
                return start if self.ratio == 1 else multiply(start, _number(self.ratio))
        observe = OBSERVERS[self.name].function
        assert observe is not None, self.name
        return observe(x, grid, axes, self.parameter)

    @property
    def turns(self) -> int | None:
        """The iterations of mse, 0 for minmax and clip_ratio; None for what `to_dynamic_bytes` lacks."""
        if self.name in ("minmax", "clip_ratio"):
            return 0
        return _turns(self.parameter) if self.name == "mse" else None

    @property
    def ratio(self) -> float:
        """What the largest magnitude is multiplied by, where `turns` is 0."""
        return _ratio(self.parameter) if self.name == "clip_ratio" else 1.0

    def __str__(self) -> str:
        return join_word(self.name, self.parameter, OBSERVERS[self.name].default)


def observer_names() -> list[str]:
    """The words for observers, sorted."""
    return sorted(OBSERVERS)


def parse_observer(word: str) -> Observer:
    """Parse an observer: minmax, clip_ratio(0.5), mse, mse(50), percentile, percentile(99.9), kl,
    hist, sensitivity.

    >>> str(parse_observer("percentile(99.9)"))
    'percentile(99.9)'
    """
    return Observer(*name_and_number("observer", word, OBSERVERS))


def lsq_initial_step(x: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
    """2 * mean|x| / sqrt(highest) of every group; 1 for a group of zeros, NaN where a value is not finite.

    >>> lsq_initial_step(paddle.to_tensor([1.0, -3.0]), parse_grid("uint2"), axes=(0,)).tolist()
    [2.309401035308838]
    """
    shape = shape_of_scales(x.shape, axes)
    count = max(1, x.size // max(1, math.prod(shape)))
    factor = paddle.full([], 2.0 / (count * math.sqrt(grid.highest)), "float64")
    mean = multiply(sum_groups(paddle.abs(x.detach()), tuple(axes), "float64"), factor)
    step = paddle.clip(mean, SMALLEST_SCALE, largest_scale(grid)).cast("float32")
    step = paddle.where(mean > 0, step, paddle.ones_like(step))
    return paddle.where(paddle.isfinite(mean), step, paddle.full_like(step, float("nan")))


def pact_initial_alpha(x: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
    """The bound to start from: that with the least squared error on this grid for these values.

    1 for a group of zeros, since a bound of 0 would let nothing through; NaN where a value is not finite.

    >>> pact_initial_alpha(paddle.to_tensor([0.0, 3.0]), parse_grid("uint2"), axes=(0,)).tolist()
    [3.0]
    """
    best = parse_observer("mse(50)").range(x, grid, axes)
    return nan_where_not_finite(paddle.where(best > 0, best, paddle.ones_like(best)), best)
