"""Scaling: when a scale is chosen, as words and as what each of them keeps between batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowbit.numerics.range_state import Calibrated, MovingAverage, RangeState, Window
from lowbit.numerics.words import join_word, name_and_number


@dataclass(frozen=True)
class _Kind:
    """What a name stands for: how to make its state, and the number that may follow in brackets, if any."""

    state: Callable[[float], RangeState] | None = None
    default: float | None = None
    meaning: str = ""
    accepts: Callable[[float], bool] = lambda number: False


SCALINGS: dict[str, _Kind] = {
    "dynamic": _Kind(),
    "moving_average": _Kind(MovingAverage, 0.9, "the rate, at least 0 and below 1", lambda r: 0 <= r < 1),
    "window": _Kind(
        lambda size: Window(int(size)),
        10000,
        "a whole number of batches, at least 1",
        lambda n: n >= 1 and n % 1 == 0,
    ),
    "hindsight": _Kind(MovingAverage, 0.1, "the rate, at least 0 and below 1", lambda r: 0 <= r < 1),
    "learned": _Kind(),
    "fixed": _Kind(lambda _: Calibrated()),
}


@dataclass(frozen=True)
class Scaling:
    """When a scale is chosen: `dynamic` (every call), `moving_average`, `window`, `learned` or `fixed`.

    >>> parse_scaling("moving_average(0.95)").new_state().rate
    0.95
    """

    name: str
    parameter: float | None = None

    def new_state(self) -> RangeState | None:
        """An empty state; None for `dynamic`, which keeps nothing, and `learned`, which is a parameter."""
        make = SCALINGS[self.name].state
        return make(self.parameter) if make else None

    def __str__(self) -> str:
        return join_word(self.name, self.parameter, SCALINGS[self.name].default)


def scaling_names() -> list[str]:
    """The words for scalings, sorted."""
    return sorted(SCALINGS)


def parse_scaling(word: str) -> Scaling:
    """The scaling that a word stands for: dynamic, moving_average, moving_average(0.95), window(10000), ...

    >>> str(parse_scaling("window(100)"))
    'window(100)'
    """
    return Scaling(*name_and_number("scaling", word, SCALINGS))
