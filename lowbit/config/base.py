"""What every config section has in common: unknown keys are errors, and fractions are numbers."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

_FRACTION = re.compile(r"\s*([-+]?[0-9.]+(?:e[-+]?\d+)?)\s*/\s*([0-9.]+(?:e[-+]?\d+)?)\s*", re.IGNORECASE)


class Section(BaseModel):
    """A config section; a misspelt key is an error, never a new setting."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=())


def parse_number(value: Any) -> Any:
    """PaddleClas writes `scale: 1.0/255.0` and evaluates it as Python; a fraction is all that is needed.

    >>> parse_number("1.0/255.0") == 1 / 255
    True
    """
    if isinstance(value, bool):
        raise ValueError("expected a number, got a yes/no value")
    if isinstance(value, str):
        if fraction := _FRACTION.fullmatch(value):
            denominator = float(fraction[2])
            if denominator == 0:
                raise ValueError(f"{value!r} divides by zero")
            return float(fraction[1]) / denominator
        try:  # YAML 1.1 reads 1e-4 (no dot) as a string
            return float(value)
        except ValueError:
            raise ValueError(f"expected a number or a fraction such as 1.0/255.0, got {value!r}") from None
    return value


Number = Annotated[float, BeforeValidator(parse_number)]
