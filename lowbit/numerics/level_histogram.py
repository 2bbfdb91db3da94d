"""How values lie on their grid: a histogram in steps of the grid, and the use of each of its levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

BINS = 96
_BEYOND = 0.5  # of the grid's own width that is shown on each side; the outermost bins take the rest


@dataclass(frozen=True, kw_only=True)
class LevelHistogram:
    """Counts of equal bins from `start` on, `width` apart; with a grid, both are in its steps.

    `levels` counts what each integer from `lowest` to `highest` is used for; without a grid all three are
    None, and the bins are in the values' own unit. `clipped` is the fraction beyond the grid by over half
    a step.
    """

    start: float
    width: float
    counts: list[int]
    lowest: int | None = None
    highest: int | None = None
    levels: list[int] | None = None
    clipped: float | None = None

    @property
    def dead_levels(self) -> int | None:
        """How many levels of the grid no value falls on."""
        return None if self.levels is None else self.levels.count(0)

    def values(self) -> dict[str, Any]:
        """As plain values for JSON, rounded to what can be seen: `dead` levels in the place of all counts.

        >>> list(value_histogram(np.array([0.0, 1.0])).values())
        ['start', 'width', 'counts']
        """
        found: dict[str, Any] = {"start": _rounded(self.start), "width": _rounded(self.width)}
        found["counts"] = self.counts
        if self.levels is not None:
            found |= {"lowest": self.lowest, "highest": self.highest, "dead": self.dead_levels}
            found["clipped"] = _rounded(self.clipped)
        return found


def level_histogram(steps: np.ndarray, lowest: int, highest: int, *, bins: int = BINS) -> LevelHistogram:
    """Of values divided by their scales, on the grid of the integers from `lowest` to `highest`.

    >>> found = level_histogram(np.array([-1.2, 0.4, 0.6, 9.0]), -2, 1)
    >>> found.levels, found.dead_levels, found.clipped
    ([0, 1, 1, 2], 1, 0.25)
    """
    steps = _finite(steps)
    beyond = max(1.0, _BEYOND * (highest - lowest))
    low = max(min(_least(steps), lowest - 0.5), lowest - beyond)
    high = min(max(_most(steps), highest + 0.5), highest + beyond)
    integers = np.clip(np.rint(steps), lowest, highest).astype(np.int64) - lowest
    outside = (steps < lowest - 0.5) | (steps > highest + 0.5)
    return LevelHistogram(
        start=low,
        width=(high - low) / bins,
        counts=_counts(steps, low, high, bins),
        lowest=lowest,
        highest=highest,
        levels=np.bincount(integers, minlength=highest - lowest + 1).tolist(),
        clipped=float(outside.mean()) if steps.size else 0.0,
    )


def value_histogram(values: np.ndarray, *, bins: int = BINS) -> LevelHistogram:
    """Of values that are on no grid.

    >>> value_histogram(np.array([0.0, 1.0, 1.0]), bins=2).counts
    [1, 2]
    """
    values = _finite(values)
    low, high = _least(values), _most(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return LevelHistogram(start=low, width=(high - low) / bins, counts=_counts(values, low, high, bins))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _finite(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64).ravel()
    return values[np.isfinite(values)]


def _least(values: np.ndarray) -> float:
    return float(values.min()) if values.size else 0.0


def _most(values: np.ndarray) -> float:
    return float(values.max()) if values.size else 0.0


def _counts(values: np.ndarray, low: float, high: float, bins: int) -> list[int]:
    counts, _ = np.histogram(np.clip(values, low, high), bins=bins, range=(low, high))
    return counts.tolist()
