"""Timing in turns: every side runs once a round, so that what else the machine does falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Times = dict[str, list[float]]


def take_turns(
    sides: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> Times:
    """Seconds of each side in each round, after one uncounted round; the order turns round every time."""
    times: Times = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in list(sides) if number % 2 else reversed(list(sides)):
            start = clock()
            sides[name]()
            if number:
                times[name].append(clock() - start)
    return times


@dataclass(frozen=True)
class Ratio:
    """The median of a ratio taken round by round, and its ends.

    >>> str(Ratio(2.0, 1.9, 2.2, 9))
    '2.00 (1.90 to 2.20)'
    """

    median: float
    least: float
    most: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.most:.2f})"


def ratio(times: Times, name: str, base: str) -> Ratio:
    """A side's time over another's.

    >>> ratio({"a": [2.0, 3.0], "b": [1.0, 1.0]}, "a", "b").median
    2.5
    """
    ratios = [one / other for one, other in zip(times[name], times[base], strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))
