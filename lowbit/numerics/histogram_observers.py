"""Observers for calibration, on the host: `percentile`, `kl`, `hist`, `sensitivity`.

All but `percentile` try many ranges on a histogram of magnitudes and take the one with the lowest cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import numpy as np
import paddle
from paddle import Tensor

from lowbit.errors import LowbitError
from lowbit.numerics.granularity import groups_as_rows
from lowbit.numerics.grid import Grid

BINS = 2048
STRIDE = 16  # bins between one candidate range and the next
_KL_FEWEST = 128
_KL_WITHOUT_COUNTERPART = 1e-4
SENSITIVITY_BINS = 4096


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


def percentile_range(x: Tensor, grid: Grid, axes: Sequence[int], percent: float | None) -> Tensor:
    """The observer `percentile`: the k-th smallest of a group's n magnitudes, k = ceil(n * percent / 100).

    Where that is 0 and not all values are, the largest: most values after a ReLU may be 0. NaN where a
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


def kl_range(x: Tensor, grid: Grid, axes: Sequence[int], parameter: float | None) -> Tensor:
    """The observer `kl`: the best range i/2048 * max|x|, i = 128, 144, ... 2048, by KL divergence.

    The histogram has 2048 bins over the magnitudes that are not 0, since 0 is on every grid. For a range,
    P is the histogram up to it, with all beyond added to its last bin, and Q the same without those,
    where each bin has its level's mean over the bins that are not empty; a bin's level is the integer
    that its middle is rounded to. If the last bin of Q is empty and that of P is not, it has 1e-4 of all.
    Of equal ones, the smallest range; none that keeps nothing. NaN where a value is not finite.
    For calibration, on the host, some milliseconds per group.
    """
    fewest = max(_KL_FEWEST, (grid.highest + STRIDE) // STRIDE * STRIDE)
    candidates = range(fewest, BINS + 1, STRIDE)
    return cheapest_range(
        x, axes, "kl", candidates, lambda counts, bins: _divergence(counts, bins, grid.highest)
    )


def _divergence(counts: np.ndarray, bins: int, highest: int) -> float:
    """Of the distribution clipped after `bins` bins from its quantized form."""
    kept = counts[:bins]
    if not kept.any():
        return np.inf
    filled = kept > 0
    clipped = kept.copy()
    clipped[-1] += counts[bins:].sum()
    level = np.rint((np.arange(bins) + 0.5) * highest / bins).astype(np.int64)
    mass = np.bincount(level, weights=kept)
    places = np.bincount(level, weights=filled)
    q = np.zeros(bins)
    q[filled] = mass[level[filled]] / places[level[filled]] / kept.sum()
    q[-1] = q[-1] or _KL_WITHOUT_COUNTERPART
    p = clipped / clipped.sum()
    p, q = p[clipped > 0], q[clipped > 0]
    return float(np.sum(p * np.log(p / q)))


def hist_range(x: Tensor, grid: Grid, axes: Sequence[int], parameter: float | None) -> Tensor:
    """The observer `hist`: the best range i/2048 * max|x|, i = 16, 32, ... 2048, by the squared error.

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


class Sensitivity:
    """The observer `sensitivity`: the range whose errors change the model's outputs least.

    A histogram of magnitudes, batch after batch, in which a value counts by its gradient's square. So what
    the model does not look at, such as an outlier that ends in a saturated ReLU6, is clipped rather than paid
    for by all others. To second order that is the change of the outputs, with independent errors.

    >>> seen = Sensitivity()
    >>> seen.widen(8.0)
    >>> seen.add(np.array([1.0, -8.0]), np.array([0.5, 0.0]))
    >>> seen.range(highest=127) < 2
    True
    """

    def __init__(self) -> None:
        self.largest = 0.0
        self.counts = np.zeros(SENSITIVITY_BINS)
        self._top = 0.0  # where the last bin ends

    def widen(self, largest: float) -> None:
        """Extend the histogram to `largest`, merging bins two by two as often as necessary."""
        self.largest = max(self.largest, largest)
        if not self._top:
            self._top = self.largest
        while self._top < self.largest:
            merged = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([merged, np.zeros(SENSITIVITY_BINS // 2)])
            self._top *= 2

    def add(self, x: np.ndarray, gradient: np.ndarray) -> None:
        """Add values, none larger than the argument of `widen`, and the gradients of the outputs."""
        if not self._top:  # zeros, which are on every grid
            return
        places = np.minimum(np.abs(x).ravel() * (SENSITIVITY_BINS / self._top), SENSITIVITY_BINS - 1).astype(
            np.int64
        )
        weights = np.square(gradient.ravel(), dtype=np.float64)
        weights[x.ravel() == 0] = 0
        self.counts += np.bincount(places, weights, minlength=SENSITIVITY_BINS)

    def range(self, *, highest: int) -> float:
        """The best of 256 ranges up to the largest magnitude; that one where no value has any influence."""
        if not self.counts.any():
            return self.largest
        candidates = range(STRIDE, SENSITIVITY_BINS + 1, STRIDE)
        best = min(candidates, key=lambda bins: squared_error(self.counts, bins, highest))
        return min(self._top * best / SENSITIVITY_BINS, self.largest)


def sensitivity_range(x: Tensor, grid: Grid, axes: Sequence[int], parameter: float | None) -> Tensor:
    """Raise an error: this observer needs gradients, which values alone do not have."""
    raise LowbitError(
        "the observer sensitivity needs gradients, which only calibration has: call "
        "lowbit.calibrate(model, batches) first"
    )
