"""From a range, the largest magnitude that a group of values keeps, to the scale, the step between them."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor

from lowbit.numerics import fused_groups
from lowbit.numerics.exact import add, divide, multiply
from lowbit.numerics.grid import Grid

# Below the smallest normal float, numbers lose their digits and some processors take them for 0.
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def largest_scale(grid: Grid) -> float:
    """The largest scale with which every value of the grid is finite.

    >>> largest_scale(parse_grid("int2")) * 2 == 3.4028234663852886e+38
    True
    """
    steps = max(-grid.lowest, grid.highest)
    scale = np.float32(_LARGEST_FLOAT / steps)
    return float(scale if float(scale) * steps <= _LARGEST_FLOAT else np.nextafter(scale, np.float32(0)))


def scale_from_range(range_: Tensor, grid: Grid) -> Tensor:
    """The scale with which `range_` is the grid's highest value: one fp32 division.

    A range of 0 (every value of the group is 0) gives 1, one that is not finite gives NaN, and the rest
    is kept between the smallest normal float and `largest_scale`.

    >>> scale_from_range(paddle.to_tensor([14.0, 0.0]), parse_grid("int4")).tolist()
    [2.0, 1.0]
    """
    found = fused_groups.scales(range_, grid)
    if found is not None:
        return found
    scale = divide(range_, paddle.full([], grid.highest, "float32"))
    scale = paddle.clip(scale, SMALLEST_SCALE, largest_scale(grid))
    # Not `range_ == 0`: Paddle takes floats that differ by less than 1e-8 for equal.
    scale = paddle.where(range_ > 0, scale, paddle.ones_like(scale))
    return nan_where_not_finite(scale, range_)


def nan_where_not_finite(x: Tensor, of: Tensor) -> Tensor:
    """`x`, but NaN where `of` is not finite."""
    # 0 or NaN. Not a NaN by name, which Paddle cannot read back from an exported program; nor of - of,
    # for which oneDNN overwrites `of` in a served one (Paddle 3.3).
    return add(x, multiply(of, paddle.full([], 0.0, "float32")))


def at_least_smallest(scale: Tensor) -> Tensor:
    """A learned scale or bound as it is used: not below the smallest normal float; NaN stays NaN."""
    return paddle.maximum(scale, paddle.full([], SMALLEST_SCALE, "float32"))
