"""TensorSpec: how one operand of a product is put on a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from lowbit.errors import LowbitError, did_you_mean
from lowbit.numerics import (
    FULL,
    Granularity,
    Grid,
    Observer,
    Scaling,
    parse_granularity,
    parse_grid,
    parse_observer,
    parse_rounding,
    parse_scaling,
)

PER_TENSOR, MINMAX, DYNAMIC = Granularity(), parse_observer("minmax"), parse_scaling("dynamic")
CLIPS = ("none", "pact")
SIGNS = ("fixed", "auto")


def _one_of(kind: str, words: tuple[str, ...]) -> Callable[[str], str]:
    def parse(word: str) -> str:
        if word not in words:
            raise LowbitError(f'unknown {kind} "{word}": {did_you_mean(str(word), words)}')
        return word

    return parse


_PARSERS: dict[str, Callable[[str], Any]] = {
    "grid": parse_grid,
    "granularity": parse_granularity,
    "observer": parse_observer,
    "scaling": parse_scaling,
    "rounding": parse_rounding,
    "clip": _one_of("clip", CLIPS),
    "sign": _one_of("sign", SIGNS),
}


def parse_setting(key: str, word: str) -> Any:
    """The value that a word stands for in a TensorSpec; an unknown word is an error with the nearest one.

    >>> parse_setting("granularity", "WNH")
    Granularity(letters='NHW')
    """
    return _PARSERS[key](word)


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Grid, granularity, observer, scaling, rounding, clip and sign of one operand; words are parsed.

    A learned step starts from LSQ's own initial value, or from the scale of an observer other than minmax.
    `sign="auto"` puts an input that calibration never sees negative (after a ReLU) on the unsigned grid of as
    many bits.

    >>> str(TensorSpec(grid="int4", granularity="N", observer="mse"))
    'int4 N mse'
    """

    grid: Grid = FULL
    granularity: Granularity = PER_TENSOR
    observer: Observer = MINMAX
    scaling: Scaling = DYNAMIC
    rounding: str = "nearest"
    clip: str = "none"
    sign: str = "fixed"

    def __post_init__(self) -> None:
        for key in _PARSERS:
            if isinstance(value := getattr(self, key), str):
                object.__setattr__(self, key, parse_setting(key, value))
        if not self.grid.is_integer and (more := self._beside_the_grid()):
            raise LowbitError(
                f"on the grid {self.grid} nothing is scaled or clipped, so {', '.join(more)} would have no "
                "effect; leave it out, or choose an integer grid"
            )
        if self.scaling.name == "learned" and self.rounding == "stochastic":
            raise LowbitError("scaling learned goes with rounding nearest: its gradient is that of nearest")
        if self.sign == "auto" and not self.grid.signed:
            raise LowbitError(f"sign auto chooses between int and uint; {self.grid} has chosen already")

    @property
    def keeps_scales(self) -> bool:
        """Whether scales live on from batch to batch, and into the deployed model."""
        return self.scaling.name != "dynamic"

    @property
    def is_trained(self) -> bool:
        """Whether it has parameters that learn: LSQ's step, PACT's bound."""
        return self.scaling.name == "learned" or self.clip == "pact"

    def as_words(self) -> dict[str, str]:
        """Every key with its word, as a recipe writes it."""
        return {key: str(getattr(self, key)) for key in _PARSERS}

    def __str__(self) -> str:
        if not self.grid.is_integer:
            return str(self.grid)
        grid = f"{self.grid}/uint{self.grid.bits}" if self.sign == "auto" else str(self.grid)
        more = [word for key, word in self._beside_the_grid().items() if key not in ("granularity", "sign")]
        return " ".join([grid, str(self.granularity), *more])

    def _beside_the_grid(self) -> dict[str, str]:
        """The keys other than the grid that are not at their defaults."""
        defaults = {field.name: str(field.default) for field in fields(self)}
        return {k: word for k, word in self.as_words().items() if k != "grid" and word != defaults[k]}


FULL_SPEC = TensorSpec()
