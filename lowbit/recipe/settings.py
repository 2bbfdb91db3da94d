"""What a rule says about operands, key by key, and the settings that concern a recipe as a whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from lowbit.config.base import Count, Number, Section, parse_number
from lowbit.errors import LowbitError
from lowbit.recipe.spec import parse_setting


class FrozenSection(Section):
    """A section that does not change once it is made: a recipe is shared by a whole run."""

    model_config = ConfigDict(frozen=True)


def _word(key: str) -> Any:
    """Text that stands for a value of a TensorSpec's key, in its one spelling."""

    def check(word: str) -> str:
        try:
            return str(parse_setting(key, word))
        except LowbitError as error:
            raise ValueError(str(error)) from None

    return Annotated[str, AfterValidator(check)]


def _as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


class SpecSettings(FrozenSection):
    """The keys of a TensorSpec that a rule sets; the others stay as earlier rules left them."""

    grid: _word("grid") = None
    granularity: _word("granularity") = None
    observer: _word("observer") = None
    scaling: _word("scaling") = None
    rounding: _word("rounding") = None
    clip: _word("clip") = None
    sign: _word("sign") = None
    rotation: _word("rotation") = None
    samples: Annotated[_word("samples"), BeforeValidator(_as_text)] = None

    @model_validator(mode="after")
    def _says_something(self) -> SpecSettings:
        if not self.model_fields_set:
            raise ValueError(f"empty; give at least one of {', '.join(type(self).model_fields)}")
        return self

    def given(self) -> dict[str, str]:
        """The keys that are set, with their words."""
        return self.model_dump(exclude_unset=True)


class _ProductSettings(FrozenSection):
    @model_validator(mode="after")
    def _names_an_operand(self) -> _ProductSettings:
        if not self.model_fields_set:
            raise ValueError(f"empty; give at least one of {', '.join(type(self).model_fields)}")
        return self

    def given(self) -> dict[str, SpecSettings]:
        """The operands that are set."""
        return {operand: getattr(self, operand) for operand in sorted(self.model_fields_set)}


class ForwardSettings(_ProductSettings):
    """What a rule says about Y = X·W."""

    input: SpecSettings = None
    weight: SpecSettings = None


class GradInputSettings(_ProductSettings):
    """What a rule says about dX = dY·W."""

    grad_output: SpecSettings = None
    weight: SpecSettings = None


class GradWeightSettings(_ProductSettings):
    """What a rule says about dW = dY·X."""

    grad_output: SpecSettings = None
    input: SpecSettings = None


class Calibration(FrozenSection):
    """Batches that are only looked at, before training, to choose the first scales.

    `correct_bias` takes out of the biases what the rounded weights add to the outputs on average.
    """

    steps: Count = 0
    correct_bias: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _has_batches(self) -> Calibration:
        if self.correct_bias and not self.steps:
            raise ValueError("correct_bias needs batches: {steps: 10, correct_bias: true}")
        return self


class BatchNorm(FrozenSection):
    """What becomes of a batch norm behind a quantized layer.

    `fold: training` quantizes the weight with the batch norm folded into it; `export` folds when exporting.
    """

    fold: Literal["training", "export"] = "export"
    freeze_after: Count | None = None  # steps, after which its statistics stand still


def _initial(value: Any) -> Any:
    if value == "data":
        return value
    try:
        return parse_number(value)
    except ValueError:
        raise ValueError(f"expected `data` or a number above 0, got {value!r}") from None


class Pact(FrozenSection):
    """How the clipping bounds of `clip: pact` are trained.

    PaddleSlim's own are `{initial: 100, learning_rate: 1000, weight_decay: 0}`.
    """

    initial: Annotated[
        Literal["data"] | Annotated[float, Field(gt=0, allow_inf_nan=False)], BeforeValidator(_initial)
    ] = "data"
    learning_rate: Annotated[Number, Field(gt=0)] = 1.0  # times the learning rate of the weights
    weight_decay: Annotated[Number, Field(ge=0)] = 1e-4
