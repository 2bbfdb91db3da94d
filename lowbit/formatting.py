"""Formatting of numbers, and tables that fit a terminal.

Commands and the results of the public API print through this module, so that a percentage, a size or a time
looks the same everywhere.
"""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

WIDTH = 80
_GAP = 2  # blanks between columns
_NARROWEST = 16  # of the first column, before other columns move to a separate table


def percent(fraction: float | None) -> str:
    """
    >>> percent(0.9912), percent(None)
    ('99.12 %', '')
    """
    return "" if fraction is None else f"{100 * fraction:.2f} %"


def points(difference: float) -> str:
    """A difference of two fractions, in percentage points.

    >>> points(-0.0125)
    '-1.25'
    """
    return f"{100 * difference:+.2f}"


def bytes_text(size: int | None) -> str:
    """
    >>> bytes_text(812), bytes_text(34_500), bytes_text(12_340_000), bytes_text(None)
    ('812 B', '34.5 kB', '12.3 MB', '')
    """
    if size is None:
        return ""
    if size < 1000:
        return f"{size} B"
    return f"{size / 1e3:.1f} kB" if size < 1e6 else f"{size / 1e6:,.1f} MB"


def number(value: float | None, digits: int = 3) -> str:
    """At least `digits` significant digits, never scientific unless it is tiny.

    >>> number(2440.3), number(12.345), number(0.01234), number(0), number(1.2e-7), number(None)
    ('2,440', '12.3', '0.0123', '0', '1.2e-07', '')
    """
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 2}e}"
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def times(ratio: float | None) -> str:
    """
    >>> times(3.456), times(None)
    ('3.46x', '')
    """
    return "" if ratio is None else f"{ratio:.2f}x"


def decibels(value: float | None) -> str:
    """
    >>> decibels(18.26), decibels(float("inf")), decibels(None)
    ('18.3', 'equal', '')
    """
    if value is None:
        return ""
    return "equal" if value == math.inf else f"{value:.1f}"


def duration(seconds: float) -> str:
    """
    >>> duration(4.26), duration(75), duration(7384), duration(200_000)
    ('4.3 s', '1 min 15 s', '2 h 3 min', '2 d 7 h')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for large, small, unit, part in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= large:
            return f"{whole // large} {unit} {whole % large // small} {part}"
    raise AssertionError(seconds)


@dataclass(frozen=True)
class Section:
    """A table with a title above it, and lines of text below."""

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    left: int = 1  # columns of words; the others are numbers, aligned to the right
    wide: tuple[str, ...] = ()  # columns that are shown with --wide only


def as_text(sections: Sequence[Section], width: int | None = WIDTH, *, wide: bool = False) -> str:
    """Sections as text of at most `width` columns (None: of any width); `wide` shows all columns.

    Numbers are never broken, words only where they have a separator. A name that is too long for its column
    gets its own line, as in `df`; columns that do not fit at all follow in a table below.

    >>> print(as_text([Section("Files", ("file", "bytes"), (("a.onnx", "10"),))]))
    Files
    file    bytes
    a.onnx     10
    """
    lines: list[str] = []
    for position, section in enumerate(sections):
        if position:
            lines.append("")
        if section.title:
            lines += wrap(section.title, width)
        if section.rows:
            shown = [i for i, title in enumerate(section.columns) if wide or title not in section.wide]
            columns = [[section.columns[i], *(row[i] for row in section.rows)] for i in shown]
            lines += _table(columns, sum(i < section.left for i in shown), width)
        for line in section.lines:
            lines += wrap(line, width)
    return "\n".join(line.rstrip() for line in lines)


def as_html(sections: Sequence[Section]) -> str:
    """Sections as HTML; the content of cells is escaped.

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
                "<tr>" + "".join(_td(text, i >= section.left) for i, text in enumerate(row)) + "</tr>"
                for row in section.rows
            )
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts += [f"<p>{html.escape(line)}</p>" for line in section.lines]
    return f"<div>{''.join(parts)}</div>"


def wrap(text: str, width: int | None) -> list[str]:
    """Lines of at most `width` columns, broken at blanks, else after `.`, `/`, `_`, `-` or a comma.

    >>> wrap("see backbone.stage3.conv1", 20)
    ['see backbone.stage3.', 'conv1']
    >>> wrap("  an indented line", 12)
    ['  an', '  indented', '  line']
    """
    if width is None or cell_len(text) <= width:
        return [text]
    indent = text[: len(text) - len(text.lstrip())]
    lines, line = [], ""
    for piece in _pieces(text.lstrip(), width - len(indent)):
        if line and cell_len(indent + line + piece.rstrip()) > width:
            lines.append(indent + line.rstrip())
            line = ""
        line += piece
    return [*lines, indent + line.rstrip()]


def _pieces(text: str, width: int) -> Iterator[str]:
    """The parts between which a line may end: words, or parts of a word that is wider than a line."""
    for word in re.findall(r"\S+\s*", text):
        if cell_len(word.rstrip()) <= width:
            yield word
            continue
        for part in re.findall(r"[^./_,\-]*[./_,\-]*\s*", word):
            while cell_len(part.rstrip()) > width:  # no separator: nothing is left but to break it
                yield part[:width]
                part = part[width:]
            if part:
                yield part


def _td(text: str, is_number: bool) -> str:
    style = ' style="text-align: right"' if is_number else ""
    return f"<td{style}>{html.escape(text)}</td>"


def _table(columns: list[list[str]], left: int, width: int | None) -> list[str]:
    """The lines of a table whose columns are lists of cells, headings first."""
    widths = [max(map(cell_len, column)) for column in columns]
    if width is None or _total(widths) <= width:
        return _rows(columns, widths, left)
    for i in range(left, len(columns)):  # headings of numbers on several lines
        widths[i] = max(_longest_piece(columns[i][0]), *map(cell_len, columns[i][1:]))
    smallest = [max(map(_longest_piece, column)) for column in columns]
    for i in sorted(range(1, left), key=lambda i: -widths[i]):  # words on several lines
        too_much = _total(widths) - width
        if too_much > 0:
            widths[i] = max(widths[i] - too_much, min(smallest[i], width // 2))
    space = width - (_total(widths) - widths[0])
    if space >= min(widths[0], _NARROWEST):
        return _rows(columns, [min(widths[0], space), *widths[1:]], left)
    return _split(columns, widths, left, width)


def _split(columns: list[list[str]], widths: list[int], left: int, width: int) -> list[str]:
    """The columns that fit, then the others in a table below; the first column is that of both."""
    first = min(widths[0], max(_NARROWEST, width // 3))
    count, used = 1, first
    while count < len(columns) and (count == 1 or used + _GAP + widths[count] <= width):
        used += _GAP + widths[count]
        count += 1
    last = min(widths[count - 1], width - first - _GAP) if count == 2 else widths[count - 1]
    lines = _rows(columns[:count], [first, *widths[1 : count - 1], last], min(left, count))
    if count < len(columns):
        rest = [columns[0], *columns[count:]]
        lines += ["", *_table(rest, max(1, left - count + 1), width)]
    return lines


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _longest_piece(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)


def _rows(columns: list[list[str]], widths: list[int], left: int) -> list[str]:
    lines = []
    for row in zip(*columns, strict=True):
        name, others = row[0], list(row[1:])
        if cell_len(name) > widths[0] and len(columns) > 1:
            lines += wrap(name, _total(widths))
            name = ""
        cells = [wrap(cell, size) for cell, size in zip((name, *others), widths, strict=True)]
        for line in range(max(map(len, cells))):
            texts = (cell[line] if line < len(cell) else "" for cell in cells)
            sized = enumerate(zip(texts, widths, strict=True))
            lines.append((" " * _GAP).join(_align(text, size, i < left) for i, (text, size) in sized))
    return lines


def _align(text: str, size: int, to_left: bool) -> str:
    blanks = " " * max(0, size - cell_len(text))
    return text + blanks if to_left else blanks + text


def boxed(lines: Sequence[str], width: int = WIDTH) -> str:
    """Lines in a frame, wrapped to fit: for warnings that must not be overlooked.

    >>> print(boxed(["Careful", "It is hot."]))
    ╔════════════╗
    ║ Careful    ║
    ║ It is hot. ║
    ╚════════════╝
    """
    wrapped = [part for line in lines for part in textwrap.wrap(line, width - 4)]
    longest = max(map(len, wrapped))
    middle = [f"║ {line.ljust(longest)} ║" for line in wrapped]
    return "\n".join([f"╔{'═' * (longest + 2)}╗", *middle, f"╚{'═' * (longest + 2)}╝"])
