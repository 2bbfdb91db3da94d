"""Timing in turns: every side runs once a round, so that what else the machine does falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def take_turns(
    sides: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each side in each round, after one uncounted round; the order turns round every time."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in list(sides) if number % 2 else reversed(list(sides)):
            start = clock()
            sides[name]()
            if number:
                times[name].append(clock() - start)
    return times


def ratio(times: dict[str, list[float]], name: str, base: str) -> str:
    """The median of a side's time over another's, round by round, and its spread."""
    ratios = [one / other for one, other in zip(times[name], times[base], strict=True)]
    spread = f"from {min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} rounds"
    return f"ratio {statistics.median(ratios):.3f}  ({spread})"
