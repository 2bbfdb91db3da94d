"""TensorSpec: how one operand of a product is put on a grid; SpecSettings: the keys of it that a rule sets.

This is the one place where the words of recipes become values: `parse_setting`, key by key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, PlainSerializer, WrapValidator, model_validator

from lowbit.config.base import Section
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
_MSE, _MSE_TO_THE_END = parse_observer("mse"), parse_observer("mse(50)")
NO_ROTATION = Rotation()
CLIPS = ("none", "pact")
SIGNS = ("fixed", "auto", "asymmetric")
SAMPLES = (1, 2)
_VALUES = (Grid, Granularity, Observer, Scaling, Rotation)


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
    """Parse one setting of a TensorSpec; an unknown word is an error with the nearest one.

    >>> parse_setting("granularity", "WNH")
    Granularity(letters='NHW')
    """
    return _PARSERS[key](word)


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Grid, granularity, observer, scaling, rounding, clip and sign of one operand; words are parsed.

    A learned step starts from LSQ's own initial value, or from the scale of an observer other than minmax.
    With `scaling` fixed or learned, `mse` is `mse(50)`: one iteration stays near the largest value.
    `sign="auto"` puts an input that calibration never sees negative (after a ReLU) on the unsigned grid of as
    many bits; `asymmetric` also learns an offset: a zero point (LSQ+). `rotation` quantizes after
    a Hadamard transform and turns back; `samples=2` is the mean of two stochastic roundings.

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
        # A scale that is chosen once has time for the search that every call would have to pay for.
        if self.observer == _MSE and self.scaling.name in ("fixed", "learned"):
            object.__setattr__(self, "observer", _MSE_TO_THE_END)
        if not self.grid.is_integer and (more := self._beside_the_grid()):
            raise LowbitError(
                f"on the grid {self.grid} nothing is scaled or clipped, so {', '.join(more)} would have no "
                "effect; leave it out, or choose an integer grid"
            )
        if self.scaling.name == "learned" and self.rounding == "stochastic":
            raise LowbitError("scaling learned goes with rounding nearest: its gradient is that of nearest")
        if self.grid.logarithmic and self.observer != MINMAX:
            raise LowbitError(f"the grid {self.grid} spans all magnitudes: its observer is minmax")
        if self.grid.midrise and (self.scaling.name, self.observer) != ("learned", _MSE_TO_THE_END):
            raise LowbitError(f"the grid {self.grid} is for learned steps: scaling learned, observer mse")
        if self.grid.midrise and self.clip != "none":
            raise LowbitError(f"the grid {self.grid} is for weights: it has no clip")
        if self.observer.ratio != 1 and self.clip == "pact":
            raise LowbitError(
                f"clip pact learns where values are clipped, and {self.observer} clips below that: use the "
                "observer minmax or mse"
            )
        if self.samples != 1 and self.rounding != "stochastic":
            raise LowbitError("two samples differ with rounding stochastic alone: leave samples out")
        if self.sign == "auto" and not self.grid.signed:
            raise LowbitError(f"sign auto chooses between int and uint; {self.grid} has chosen already")
        if self.sign == "asymmetric":
            if not self.grid.signed or self.grid.narrow or not self.grid.has_every_integer:
                raise LowbitError(
                    f"sign asymmetric learns where a grid begins, which {self.grid} says: use "
                    f"int{self.grid.bits}"
                )
            if self.scaling.name != "learned" or self.granularity != PER_TENSOR or self.clip != "none":
                raise LowbitError(
                    "sign asymmetric goes with scaling learned, granularity per-tensor and no clip (LSQ+)"
                )

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
        signs = {"auto": f"{self.grid}/uint{self.grid.bits}", "asymmetric": f"{self.grid}-asymmetric"}
        grid = signs.get(self.sign, str(self.grid))
        more = [word for key, word in self._beside_the_grid().items() if key not in ("granularity", "sign")]
        return " ".join([grid, str(self.granularity), *more])

    def _beside_the_grid(self) -> dict[str, str]:
        """The keys other than the grid that are not at their defaults."""
        defaults = {field.name: str(field.default) for field in fields(self)}
        return {k: word for k, word in self.as_words().items() if k != "grid" and word != defaults[k]}


FULL_SPEC = TensorSpec()


class FrozenSection(Section):
    """A section that does not change once it is made: a recipe is shared by a whole run."""

    model_config = ConfigDict(frozen=True)


def _setting(key: str) -> Any:
    """A value of a TensorSpec's key: parsed out of a word, and written as its one spelling."""

    def check(value: Any, is_text: Callable[[Any], str]) -> Any:
        if isinstance(value, _VALUES):
            return value
        try:
            return parse_setting(key, is_text(value))
        except LowbitError as error:
            raise ValueError(str(error)) from None

    return Annotated[str, WrapValidator(check), PlainSerializer(str)]


def _as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


class SpecSettings(FrozenSection):
    """The keys of a TensorSpec that a rule sets; the others stay as earlier rules left them."""

    grid: _setting("grid") = None
    granularity: _setting("granularity") = None
    observer: _setting("observer") = None
    scaling: _setting("scaling") = None
    rounding: _setting("rounding") = None
    clip: _setting("clip") = None
    sign: _setting("sign") = None
    rotation: _setting("rotation") = None
    samples: Annotated[_setting("samples"), BeforeValidator(_as_text)] = None

    @model_validator(mode="after")
    def _says_something(self) -> SpecSettings:
        if not self.model_fields_set:
            raise ValueError(f"empty; give at least one of {', '.join(type(self).model_fields)}")
        return self

    def given(self) -> dict[str, Any]:
        """The keys that are set, with their values.

        >>> SpecSettings(granularity="WNH").given()
        {'granularity': Granularity(letters='NHW')}
        """
        return {key: getattr(self, key) for key in type(self).model_fields if key in self.model_fields_set}
