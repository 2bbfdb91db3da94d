"""The observer `mse`: the scale with the least squared error, found by turns.

From the scale of minmax, q = clip(round(x / scale)), then scale = <x, q> / <q, q>, which is best for that q;
and again. The sums are of integers, so they do not depend on the order of adding: whoever computes
them, however a tensor is split, gets the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import Tensor

from lowbit.numerics import fused_groups
from lowbit.numerics.exact import divide, multiply, subtract
from lowbit.numerics.grid import Grid
from lowbit.numerics.groups import largest_magnitude, require_values, sum_groups
from lowbit.numerics.quantize import quantize_to_integers
from lowbit.numerics.scale import scale_from_range

_STOP = 1e-6
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def mse_range(
    x: Tensor, grid: Grid, axes: Sequence[int], iterations: float | None, start: Tensor | None = None
) -> Tensor:
    """highest * scale after `iterations` turns, fewer for a group whose range changes by 1e-6 or less.

    In a turn, with s the scale of minmax, 2^b >= |q| for all q of the grid, and f = 30 - 2b fraction bits:

        i = round(x / s * 2^f)                             in 32 bits, and so is i * q
        ratio = fp32(sum(i * q) / sum(q * q)) * 2^-f       the division in fp64
        range = (s * highest) * ratio                      in fp32, at most the largest float

    A group whose q are all 0 keeps its range, which happens to denormal numbers only. `start` is max |x| of
    every group, where the caller knows it; the kernel writes over it.
    """
    turns = int(iterations or 1)
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


def _projection(x: Tensor, q: Tensor, axes: Sequence[int]) -> Tensor:
    """<x, q> / <q, q> of integers, fp32."""
    along = sum_groups(multiply(x, q), axes, "int64").cast("float64")
    square = sum_groups(multiply(q, q), axes, "int64").cast("float64")
    # No product in fp64: in a served program, oneDNN gives nonsense for it (Paddle 3.3).
    return divide(along, paddle.maximum(square, paddle.ones_like(square))).cast("float32")


def _number(value: float) -> Tensor:
    return paddle.full([], value, "float32")
