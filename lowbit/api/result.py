"""What results have in common: a table for print and for notebooks, and plain values for programs."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_WIDTH = 80


@dataclass(frozen=True)
class Section:
    """A table with a title above it, and lines of text below."""

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    left: int = 1  # columns of words; the others are numbers, aligned to the right


@dataclass(frozen=True)
class Result:
    """`print` shows a table of at most 80 columns, notebooks an HTML table, `to_dict` gives the values."""

    def _sections(self) -> Sequence[Section]:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values that JSON can hold; what is not finite becomes None."""
        values = _plain(asdict(self))
        assert isinstance(values, dict)
        return values

    def __str__(self) -> str:
        return as_text(self._sections())

    def _repr_html_(self) -> str:
        return as_html(self._sections())


def as_text(sections: Sequence[Section], width: int = _WIDTH) -> str:
    """Sections as text of at most `width` columns.

    >>> print(as_text([Section("Files", ("file", "bytes"), (("a.onnx", "10"),))]))
    Files
    file    bytes
    a.onnx     10
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    for number, section in enumerate(sections):
        if number:
            console.print()
        if section.title:
            console.print(Text(section.title))
        if section.rows:
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for index, column in enumerate(section.columns):
                justify: Any = "left" if index < section.left else "right"
                # Words fold only where they do not fit at all; numbers never.
                table.add_column(column, justify=justify, overflow="fold", no_wrap=index >= section.left)
            for row in section.rows:
                table.add_row(*map(Text, row))
            console.print(table)
        for line in section.lines:
            console.print(Text(line))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def as_html(sections: Sequence[Section]) -> str:
    """Sections as HTML; whatever stands in a cell is escaped.

    >>> as_html([Section("<b>", lines=("a & b",))])
    '<div><p><strong>&lt;b&gt;</strong></p><p>a &amp; b</p></div>'
    """
    parts = []
    for section in sections:
        if section.title:
            parts.append(f"<p><strong>{html.escape(section.title)}</strong></p>")
        if section.rows:
            head = "".join(f"<th>{html.escape(column)}</th>" for column in section.columns)
            body = "".join(
                "<tr>"
                + "".join(_cell(text, index >= section.left) for index, text in enumerate(row))
                + "</tr>"
                for row in section.rows
            )
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts += [f"<p>{html.escape(line)}</p>" for line in section.lines]
    return f"<div>{''.join(parts)}</div>"


def _cell(text: str, number: bool) -> str:
    style = ' style="text-align: right"' if number else ""
    return f"<td{style}>{html.escape(text)}</td>"


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


def bytes_text(size: int) -> str:
    """A size as people read it.

    >>> bytes_text(812), bytes_text(34_500), bytes_text(12_340_000)
    ('812 B', '34.5 kB', '12.3 MB')
    """
    if size < 1000:
        return f"{size} B"
    return f"{size / 1e3:.1f} kB" if size < 1e6 else f"{size / 1e6:.1f} MB"


def percent(fraction: float | None) -> str:
    """
    >>> percent(0.9912), percent(None)
    ('99.12 %', '')
    """
    return "" if fraction is None else f"{100 * fraction:.2f} %"
