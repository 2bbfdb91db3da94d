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
    Rotation,
    Scaling,
    parse_granularity,
    parse_grid,
    parse_observer,
    parse_rotation,
    parse_rounding,
    parse_scaling,
)

PER_TENSOR, MINMAX, DYNAMIC = Granularity(), parse_observer("minmax"), parse_scaling("dynamic")
NO_ROTATION = Rotation()
CLIPS = ("none", "pact")
SIGNS = ("fixed", "auto")
SAMPLES = (1, 2)


def _one_of(kind: str, words: tuple[str, ...]) -> Callable[[str], str]:
    def parse(word: str) -> str:
        if word not in words:
            raise LowbitError(f'unknown {kind} "{word}": {did_you_mean(str(word), words)}')
        return word

    return parse


def _parse_samples(word: str) -> int:
    if word not in map(str, SAMPLES):
        raise LowbitError(f"samples is {' or '.join(map(str, SAMPLES))}, not {word}")
    return int(word)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "grid": parse_grid,
    "granularity": parse_granularity,
    "observer": parse_observer,
    "scaling": parse_scaling,
    "rounding": parse_rounding,
    "clip": _one_of("clip", CLIPS),
    "sign": _one_of("sign", SIGNS),
    "rotation": parse_rotation,
    "samples": _parse_samples,
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
    many bits. `rotation` quantizes after a Hadamard transform and turns back; `samples=2` is the mean of two
    stochastic roundings.

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
    rotation: Rotation = NO_ROTATION
    samples: int = 1

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
        if self.grid.logarithmic and self.observer != MINMAX:
            raise LowbitError(f"the grid {self.grid} spans all magnitudes: its observer is minmax")
        if self.samples != 1 and self.rounding != "stochastic":
            raise LowbitError("two samples differ with rounding stochastic alone: leave samples out")
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
