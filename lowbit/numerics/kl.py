"""The observer `kl`: the range whose quantized histogram tells least apart from the values' own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from paddle import Tensor

from lowbit.numerics.grid import Grid
from lowbit.numerics.histogram import BINS, cheapest_range

STRIDE = 16
_FEWEST = 128
_WITHOUT_COUNTERPART = 1e-4


def kl_range(x: Tensor, grid: Grid, axes: Sequence[int], parameter: float | None) -> Tensor:
    """The best of the ranges i/2048 * max|x|, i = 128, 144, ... 2048, by Kullback-Leibler divergence.

    The histogram has 2048 bins over the magnitudes that are not 0, since 0 is on every grid. For a range,
    P is the histogram up to it, with all beyond added to its last bin, and Q the same without those,
    where each bin has its level's mean over the bins that are not empty; a bin's level is the integer
    that its middle is rounded to. If the last bin of Q is empty and that of P is not, it has 1e-4 of all.
    Of equal ones, the smallest range; none that keeps nothing. NaN where a value is not finite.
    For calibration, on the host, some milliseconds per group.
    """
    fewest = max(_FEWEST, (grid.highest + STRIDE) // STRIDE * STRIDE)
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
    q[-1] = q[-1] or _WITHOUT_COUNTERPART
    p = clipped / clipped.sum()
    p, q = p[clipped > 0], q[clipped > 0]
    return float(np.sum(p * np.log(p / q)))
