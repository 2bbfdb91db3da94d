"""The words of a tensor spec that may carry a number in brackets, such as `percentile(99.9)`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lowbit.errors import LowbitError, did_you_mean


def split_word(kind: str, word: str, names: Iterable[str]) -> tuple[str, float | None]:
    """The name and the number of a word; a name that is not among `names` is an error.

    >>> split_word("observer", "percentile(99.9)", ["minmax", "percentile"])
    ('percentile', 99.9)
    """
    names = sorted(names)
    if not isinstance(word, str):
        raise LowbitError(f"{kind} must be a word ({', '.join(names)}), not {word!r}")
    parts = re.fullmatch(r"\s*([^()]*?)\s*(?:\(([^()]*)\))?\s*", word)
    name, text = (parts[1], parts[2]) if parts else (word, None)
    if name not in names:
        raise LowbitError(f'unknown {kind} "{name}": {did_you_mean(name, names)}')
    if text is None:
        return name, None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise LowbitError(f'{kind} "{word}": "{text}" is not a number')
    return name, number


@dataclass(frozen=True)
class Kind:
    """What a registry says of a name: its function, its default number, and which numbers it takes."""

    function: Callable[..., Any] | None = None
    default: float | None = None
    meaning: str = ""  # of the number in brackets; empty where the name takes none
    accepts: Callable[[float], bool] = lambda number: False


def name_and_number(what: str, word: str, kinds: Mapping[str, Kind]) -> tuple[str, float | None]:
    """A word's name and number, or the default; a number that the name does not take is an error."""
    name, number = split_word(what, word, kinds)
    kind = kinds[name]
    if number is None:
        return name, kind.default
    if not kind.accepts(number):
        expected = f"the number in brackets is {kind.meaning}" if kind.meaning else f"{name} takes no number"
        raise LowbitError(f'{what} "{word}": {expected}')
    return name, number


def join_word(name: str, number: float | None, default: float | None) -> str:
    """The shortest word that `split_word` reads back to the same.

    >>> join_word("mse", 50.0, None)
    'mse(50)'
    """
    return name if number == default else f"{name}({str(number).removesuffix('.0')})"
