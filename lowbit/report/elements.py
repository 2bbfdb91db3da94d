"""Elements of HTML: every text in them is escaped here, and only here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

NOTHING = "–"  # noqa: RUF001 (a dash, for a missing value)


def percent(fraction: float | None) -> str:
    """
    >>> percent(0.9876)
    '98.76 %'
    """
    return NOTHING if fraction is None else f"{100 * fraction:.2f} %"


def points(fraction: float | None) -> str:
    """A difference of two fractions in percentage points.

    >>> points(-0.0056), points(0.0)
    ('-0.56', '0.00')
    """
    if fraction is None:
        return NOTHING
    text = f"{100 * fraction:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def ratio(value: float | None) -> str:
    """
    >>> ratio(1.897)
    '1.90x'
    """
    return NOTHING if value is None else f"{value:.2f}x"


def size(count: int | None) -> str:
    """Bytes.

    >>> size(1_234_567), size(2048)
    ('1.235 MB', '2.0 KB')
    """
    if count is None:
        return NOTHING
    return f"{count / 1e6:.3f} MB" if count >= 1e6 else f"{count / 1e3:.1f} KB"


def number(value: float | None, digits: int = 4) -> str:
    """With so many significant digits, or all those before the point if there are more.

    >>> number(0.123456), number(5852.3, 3)
    ('0.1235', '5852')
    """
    if value is None:
        return NOTHING
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def decibels(value: float | None) -> str:
    """
    >>> decibels(18.26)
    '18.3 dB'
    """
    return NOTHING if value is None else f"{value:.1f} dB"


_COLOURS = 8  # of runs, --c0 to --c7 in page.css


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is more than text."""

    text: str
    kind: str = ""  # a class of page.css: `best`, `good`, `bad`, `right`, `wrong`
    run: int | None = None  # whose number, in its colour, is shown before the text
    heat: float | None = None  # from 0 to 1: how strongly the background is coloured


@dataclass(frozen=True)
class Point:
    """A point of a scatter chart."""

    label: str
    x: float
    y: float
    run: int
    start: tuple[float, float] | None = None  # an open circle, from which a line leads to the point


Text = str | Cell


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Text]], *, left: int = 1) -> str:
    """A table with a caption in a frame that scrolls by itself; the first column heads the rows.

    >>> ">1.2</td>" in table("Sizes", ["format", "MB"], [["ONNX", "1.2"]])
    True
    """
    titles = "".join(
        f'<th scope="col"{_left(column, left)}>{escape(title)}</th>' for column, title in enumerate(head)
    )
    body = "".join(f"<tr>{_cells(row, left)}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption><span>{escape(caption)}</span></caption><thead><tr>{titles}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def bars(caption: str, rows: Iterable[tuple[int, str, float, str]], mark: float | None = None) -> str:
    """Bars in the colours of runs, the longest as wide as there is space: run, name, size, size in words.

    A line is drawn at `mark`. Without rows there is no table.
    """
    rows = list(rows)
    if not rows:
        return ""
    most = max(*(size for _, _, size, _ in rows), mark or 0) or 1
    line = "" if mark is None else f'<i style="left:{100 * mark / most:.2f}%"></i>'
    drawn = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="bar"><div>'
        f'<span style="width:{100 * max(size, 0) / most:.2f}%;{_colour(run)}"></span>{line}</div></td>'
        f'<td class="number">{escape(words)}</td></tr>'
        for run, name, size, words in rows
    )
    return f'<table class="bars"><caption>{escape(caption)}</caption><tbody>{drawn}</tbody></table>'


def statements(rows: Iterable[tuple[Cell, Cell, str]]) -> str:
    """A list of a run, its state, and a sentence about it."""
    drawn = "".join(
        f'<li><b>{_dot(run.run)}{escape(run.text)}</b> <span class="{state.kind}">{escape(state.text)}</span>'
        f"<br>{escape(sentence)}</li>"
        for run, state, sentence in rows
    )
    return f'<ul class="statements">{drawn}</ul>'


def gallery(pictures: Iterable[tuple[str, str, Sequence[Cell]]]) -> str:
    """Pictures with lines below them: a name, a JPEG in base64 (callers must validate it), and the lines."""
    drawn = "".join(
        f'<li title="{escape(name)}"><img src="data:image/jpeg;base64,{escape(jpeg)}" alt="{escape(name)}">'
        + "".join(f'<span class="{line.kind}">{escape(line.text)}</span>' for line in lines)
        + "</li>"
        for name, jpeg, lines in pictures
    )
    return f'<ul class="gallery">{drawn}</ul>'


def section(key: str, title: str, *content: str) -> str:
    """A section with a heading of the second rank."""
    return (
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{escape(title)}</h2>'
        f"{''.join(content)}</section>"
    )


def heading(title: str) -> str:
    """A heading of the third rank."""
    return f"<h3>{escape(title)}</h3>"


def paragraph(text: str, kind: str = "") -> str:
    """Plain text; `kind` is `note` for what is secondary, `good` and `bad` for verdicts."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def scatter(key: str, title: str, unit: str, points: Sequence[Point], x_unit: str) -> str:
    """A chart of numbered points, which needs no script; `y` starts near the lowest point, `x` at 0."""
    places = [(point.x, point.y) for point in points] + [point.start for point in points if point.start]
    lowest, highest = min(y for _, y in places), max(y for _, y in places)
    margin = max(0.15 * (highest - lowest), 0.1)
    x_ticks, y_ticks = ticks(0, 1.05 * max(x for x, _ in places)), ticks(lowest - margin, highest + margin)

    def at(x: float, y: float) -> tuple[float, float]:
        return 100 * x / x_ticks[-1], 100 * (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    drawn = [f'<span class="tick y" style="bottom:{at(0, y)[1]:.2f}%">{number(y)}</span>' for y in y_ticks]
    drawn += [f'<span class="tick x" style="left:{at(x, 0)[0]:.2f}%">{number(x)}</span>' for x in x_ticks]
    lines: list[str] = []
    marks: list[str] = []
    taken: list[Any] = []
    for point in points:
        left, bottom = at(point.x, point.y)
        if point.start:
            x, y = at(*point.start)
            ends = f'x1="{x:.2f}" y1="{100 - y:.2f}" x2="{left:.2f}" y2="{100 - bottom:.2f}"'
            lines.append(f'<line {ends} style="{_colour(point.run)}"/>')
            place = f"left:{x:.2f}%;bottom:{y:.2f}%;{_colour(point.run)}"
            marks.append(f'<span class="dot open" style="{place}"></span>')
        # Points that would hide each other are moved apart.
        beside = sum(abs(left - x) < 3 and abs(bottom - y) < 6 for x, y in taken)
        taken.append((left, bottom))
        place = f"left:{left:.2f}%;bottom:{bottom:.2f}%;translate:{22 * beside}px;{_colour(point.run)}"
        marks.append(f'<span class="dot" style="{place}">{point.run + 1}</span>')
    words = [f"{point.label} {point.y:.2f} %, {number(point.x)} {x_unit}" for point in points]
    legend = [f"<li>{_dot(point.run)}{escape(text)}</li>" for point, text in zip(points, words, strict=True)]
    spoken = escape(f"{title}: " + "; ".join(words))
    if lines:
        legend.append('<li><span class="dot open"></span> fp32</li>')
    return (
        f'<figure class="chart" id="scatter-{escape(key)}"><figcaption><b>{escape(title)}</b> '
        f'<span class="unit">{escape(unit)}</span></figcaption>'
        f'<div class="plane" role="img" aria-label="{spoken}"><div class="area">'
        f'{"".join(drawn)}<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        f'{"".join(lines)}</svg>{"".join(marks)}</div></div><p class="axis">{escape(x_unit)}</p>'
        f'<ul class="legend">{"".join(legend)}</ul></figure>'
    )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that enclose a range.

    >>> ticks(97.9, 99.6), ticks(0, 1200)
    ([97.5, 98.0, 98.5, 99.0, 99.5, 100.0], [0.0, 500.0, 1000.0, 1500.0])
    """
    rough = max(high - low, 1e-9 * max(abs(low), abs(high)), 1e-9) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next((one for one in (1, 2, 5) if one * power >= rough * 0.999), 10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, max(last, first + 1) + 1)]


def chart(key: str, title: str, unit: str) -> str:
    """The place of a chart, which the page's script fills."""
    return (
        f'<figure class="chart" id="chart-{escape(key)}"><figcaption><b>{escape(title)}</b> '
        f'<span class="unit">{escape(unit)}</span></figcaption><div class="plot"></div></figure>'
    )


def choice(key: str, title: str, options: Sequence[str]) -> str:
    """A labelled list to choose from; values are the numbers of the options."""
    made = "".join(f'<option value="{index}">{escape(name)}</option>' for index, name in enumerate(options))
    return f'<label for="{key}">{escape(title)} <select id="{key}">{made}</select></label>'


def commands(lines: Iterable[str]) -> str:
    """Commands for a terminal; the page's script gives each a button that copies it."""
    return "".join(
        f'<div class="command"><pre tabindex="0"><code>{escape(line)}</code></pre></div>' for line in lines
    )


def details(title: str, content: str) -> str:
    """What is folded away until it is asked for."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def json_block(key: str, values: Any) -> str:
    """Values for the page's script; nothing in them can end the block."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f'<script type="application/json" id="{key}">{text.replace("<", chr(92) + "u003c")}</script>'


def _cells(row: Sequence[Text], left: int) -> str:
    return "".join(_cell(one, column, left) for column, one in enumerate(row))


def _cell(one: Text, column: int, left: int) -> str:
    cell = one if isinstance(one, Cell) else Cell(one)
    star = ' <span class="star" title="best of this column">★</span>' if cell.kind == "best" else ""
    text = f"{_dot(cell.run)}{escape(cell.text)}{star}"
    if column == 0:
        return f'<th scope="row">{text}</th>'
    classes = " ".join(word for word in ("" if column < left else "number", cell.kind) if word)
    attributes = f' class="{classes}"' if classes else ""
    if cell.heat is not None:
        attributes += f' style="--heat:{100 * cell.heat:.0f}%"'
    return f"<td{attributes}>{text}</td>"


def _dot(run: int | None) -> str:
    """The number of a run in its colour."""
    return "" if run is None else f'<span class="dot" style="{_colour(run)}">{run + 1}</span> '


def _colour(run: int) -> str:
    return f"--run:var(--c{run % _COLOURS})"


def _left(column: int, left: int) -> str:
    return "" if column < left else ' class="number"'
