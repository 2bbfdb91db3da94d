"""The range of a group of values that costs least, tried on a histogram of their magnitudes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import paddle
from paddle import Tensor

from lowbit.numerics.groups import groups_as_rows

BINS = 2048


def cheapest_range(
    x: Tensor,
    axes: Sequence[int],
    name: str,
    candidates: Iterable[int],
    cost: Callable[[np.ndarray, int], float],
) -> Tensor:
    """Of the ranges i/2048 * max|x|, i of `candidates`, the first of least `cost(counts, i)`.

    `counts` has 2048 bins over the magnitudes that are not 0, since 0 is on every grid. 0 for a group of
    zeros, NaN where a value is not finite.
    """
    rows, shape = groups_as_rows(x, axes, name)
    candidates = list(candidates)
    ranges = np.array([_of_row(row, candidates, cost) for row in rows], np.float32)
    return paddle.to_tensor(ranges.reshape(shape), place=x.place)


def _of_row(magnitudes: np.ndarray, candidates: list[int], cost: Callable[[np.ndarray, int], float]) -> float:
    largest = float(magnitudes.max())
    if not np.isfinite(largest):
        return np.nan
    values = magnitudes[magnitudes > 0].astype(np.float64)
    if not len(values):
        return 0.0
    places = np.minimum((values / largest * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(places, minlength=BINS).astype(np.float64)
    return largest * (min(candidates, key=lambda bins: cost(counts, bins)) / BINS)
