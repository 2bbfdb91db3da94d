"""What every config section has in common: unknown keys are errors, and fractions are numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from lowbit.errors import did_you_mean

_FRACTION = re.compile(r"\s*([-+]?[0-9.]+(?:e[-+]?\d+)?)\s*/\s*([0-9.]+(?:e[-+]?\d+)?)\s*", re.IGNORECASE)


class Section(BaseModel):
    """A config section; a misspelt key is an error that names the nearest valid one, never a new setting."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if values is None:  # `Section:` with nothing below it
            return {}
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    raise unknown_key(key, cls.model_fields)
        return values


def unknown_key(key: Any, valid: Iterable[str]) -> PydanticCustomError:
    """The error about a key that is none of the valid ones."""
    hint = did_you_mean(str(key), valid)
    return PydanticCustomError("unknown_key", "unknown key, {hint}", {"key": key, "hint": hint})


def parse_number(value: Any) -> Any:
    """PaddleClas writes `scale: 1.0/255.0` and evaluates it as Python; a fraction is all that is needed.

    >>> parse_number("1.0/255.0") == 1 / 255
    True
    """
    if isinstance(value, bool):
        raise ValueError("expected a number, got a yes/no value")
    if isinstance(value, str):
        try:  # YAML 1.1 reads 1e-4 (no dot) as a string
            if fraction := _FRACTION.fullmatch(value):
                return float(fraction[1]) / float(fraction[2])
            return float(value)
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"expected a number or a fraction such as 1.0/255.0, got {value!r}") from None
    return value


Number = Annotated[float, BeforeValidator(parse_number), Field(allow_inf_nan=False)]
Integer = Annotated[int, Field(strict=True)]  # `epochs: yes` is a mistake, not 1
Count = Annotated[Integer, Field(ge=0)]
Positive = Annotated[Integer, Field(ge=1)]
