"""The observer `sensitivity`: the range whose errors change the model's answers least.

The error of a value counts by the square of the gradient that the answers have there, so what the model
does not look at, such as an outlier that ends in a saturated ReLU6, is clipped rather than paid for by all
others. To second order that is the change of the answers, with the errors taken to be independent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from paddle import Tensor

from lowbit.errors import LowbitError
from lowbit.numerics.grid import Grid
from lowbit.numerics.hist import squared_error

BINS = 4096
_STRIDE = 16


class Sensitivity:
    """A histogram of magnitudes, batch after batch, in which a value counts by its gradient's square.

    >>> seen = Sensitivity()
    >>> seen.widen(8.0)
    >>> seen.add(np.array([1.0, -8.0]), np.array([0.5, 0.0]))
    >>> seen.range(highest=127) < 2
    True
    """

    def __init__(self) -> None:
        self.largest = 0.0
        self.counts = np.zeros(BINS)
        self._top = 0.0  # where the last bin ends

    def widen(self, largest: float) -> None:
        """Make room for magnitudes up to `largest`; two bins become one as often as need be."""
        self.largest = max(self.largest, largest)
        if not self._top:
            self._top = self.largest
        while self._top < self.largest:
            merged = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([merged, np.zeros(BINS // 2)])
            self._top *= 2

    def add(self, x: np.ndarray, gradient: np.ndarray) -> None:
        """Take in values, none larger than what `widen` was told, and the answers' gradients there."""
        if not self._top:  # zeros, which are on every grid
            return
        places = np.minimum(np.abs(x).ravel() * (BINS / self._top), BINS - 1).astype(np.int64)
        weights = np.square(gradient.ravel(), dtype=np.float64)
        weights[x.ravel() == 0] = 0
        self.counts += np.bincount(places, weights, minlength=BINS)

    def range(self, *, highest: int) -> float:
        """The best of 256 ranges up to the largest magnitude; that one where no value has any influence."""
        if not self.counts.any():
            return self.largest
        candidates = range(_STRIDE, BINS + 1, _STRIDE)
        best = min(candidates, key=lambda bins: squared_error(self.counts, bins, highest))
        return min(self._top * best / BINS, self.largest)


def sensitivity_range(x: Tensor, grid: Grid, axes: Sequence[int], parameter: float | None) -> Tensor:
    """What the observer cannot do: values alone have no gradients."""
    raise LowbitError(
        "the observer sensitivity looks at gradients, which calibration alone has: call "
        "lowbit.layers.calibrate(model, batches) first"
    )
