"""How far two sets of integers are apart, in steps of their grid, added up over batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass
class Steps:
    """Differences of values that should be equal.

    >>> steps = Steps()
    >>> steps.add(np.array([3, 4, 5, 6]), np.array([3, 4, 5, 8]))
    >>> steps.largest, steps.differing, round(steps.sqnr)
    (2.0, 0.25, 13)
    """

    count: int = 0
    unequal: int = 0
    beyond_one: int = 0
    largest: float = 0.0
    signal: float = 0.0  # sums of squares
    noise: float = 0.0

    def add(self, expected: np.ndarray, got: np.ndarray) -> None:
        """Count one batch; what is not a number on one side is infinitely far from everything."""
        wanted = expected.astype(np.float64)
        distance = np.abs(got.astype(np.float64) - wanted)
        distance = np.where(np.isnan(distance), np.inf, distance)
        self.count += distance.size
        self.unequal += int((distance > 0).sum())
        self.beyond_one += int((distance > 1).sum())
        self.largest = max(self.largest, float(distance.max(initial=0)))
        self.signal += float(np.square(np.where(np.isfinite(wanted), wanted, 0)).sum())
        self.noise += float(np.square(distance).sum())

    @property
    def differing(self) -> float:
        """The fraction that is not equal."""
        return self.unequal / self.count if self.count else 0.0

    @property
    def far(self) -> float:
        """The fraction that is more than one step away."""
        return self.beyond_one / self.count if self.count else 0.0

    @property
    def sqnr(self) -> float:
        """The signal over the differences, in decibels: infinite where all are equal."""
        if self.noise == 0:
            return math.inf
        if self.signal == 0 or math.isinf(self.noise):
            return -math.inf
        return 10 * math.log10(self.signal / self.noise)
