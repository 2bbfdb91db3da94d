"""What results have in common: a table for print and for notebooks, and plain values for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lowbit.formatting import WIDTH, Section, as_html, as_text


@dataclass(frozen=True)
class Result:
    """`print` shows a table of at most 80 columns, notebooks an HTML table, `to_dict` gives the values."""

    def _sections(self) -> Sequence[Section]:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-compatible values; values that are not finite become None."""
        values = _plain(asdict(self))
        assert isinstance(values, dict)
        return values

    def to_text(self, width: int | None = WIDTH, *, wide: bool = False) -> str:
        """The tables in at most `width` columns (None: of any width); `wide`: with all their columns."""
        return as_text(self._sections(), width, wide=wide)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return as_html(self._sections())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
