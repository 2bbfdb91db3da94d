"""The observer `hist`: the range with the least squared error, by a histogram of the magnitudes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from paddle import Tensor

from lowbit.numerics.grid import Grid
from lowbit.numerics.histogram import BINS, cheapest_range

STRIDE = 16


def hist_range(x: Tensor, grid: Grid, axes: Sequence[int], parameter: float | None) -> Tensor:
    """The best of the ranges i/2048 * max|x|, i = 16, 32, ... 2048, by the squared error of quantizing.

    A value counts as the middle of its bin, of 2048; 0 has no error. Of equal ranges, the smallest. All
    ranges are tried, so unlike `mse` it does not stay near the largest value where a grid has many levels.
    NaN where a value is not finite. For calibration, on the host, some milliseconds per group.
    """
    candidates = range(STRIDE, BINS + 1, STRIDE)
    return cheapest_range(
        x, axes, "hist", candidates, lambda counts, bins: squared_error(counts, bins, grid.highest)
    )


def squared_error(counts: np.ndarray, bins: int, highest: int) -> float:
    """The sum of squared errors, in bins, when `bins` bins are the grid's highest value."""
    middle = np.arange(len(counts)) + 0.5
    level = np.minimum(np.rint(middle * highest / bins), highest)
    return float(np.sum(counts * (middle - level * bins / highest) ** 2))
