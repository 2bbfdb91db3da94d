"""The observer `percentile`: the magnitude that a given share of the values does not exceed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import paddle
from paddle import Tensor

from lowbit.numerics.grid import Grid
from lowbit.numerics.groups import groups_as_rows


def percentile_range(x: Tensor, grid: Grid, axes: Sequence[int], percent: float | None) -> Tensor:
    """The k-th smallest of a group's n magnitudes, k = ceil(n * percent / 100): one of the values.

    Where that is 0 and not all values are, the largest: most values behind a ReLU may be 0. NaN where a
    value is not finite. For calibration, on the host.
    """
    rows, shape = groups_as_rows(x, axes, "percentile")
    count = rows.shape[1]
    # As written in decimals: 99.9 as a float is a little more, and the rank would be one too high.
    rank = max(1, math.ceil(Fraction(str(percent)) * count / 100))
    with np.errstate(invalid="ignore"):
        chosen = np.partition(rows, rank - 1, axis=1)[:, rank - 1]
    chosen = np.where(chosen > 0, chosen, rows.max(axis=1))
    chosen = np.where(np.isfinite(rows).all(axis=1), chosen, np.float32("nan"))
    return paddle.to_tensor(chosen.astype(np.float32).reshape(shape), place=x.place)
