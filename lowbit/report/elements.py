"""Pieces of HTML: every text in them is escaped here, and only here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table with a caption in a frame that scrolls by itself; the first column heads the rows.

    >>> "<caption>Sizes</caption>" in table("Sizes", ["format", "MB"], [["ONNX", "1.2"]])
    True
    """
    titles = "".join(
        f'<th scope="col"{_left(number, left)}>{escape(title)}</th>' for number, title in enumerate(head)
    )
    body = "".join(f"<tr>{_cells(row, left)}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def bars(caption: str, rows: Iterable[tuple[str, float, str]]) -> str:
    """Labelled bars, the longest as wide as there is room: name, size, and the size in words."""
    rows = list(rows)
    most = max((size for _, size, _ in rows), default=0) or 1
    drawn = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="bar">'
        f'<span style="width:{100 * size / most:.2f}%"></span></td>'
        f'<td class="number">{escape(words)}</td></tr>'
        for name, size, words in rows
    )
    return f'<table class="bars"><caption>{escape(caption)}</caption><tbody>{drawn}</tbody></table>'


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
    """Plain text; `kind` is `note` for what is said by the way, `good` and `bad` for verdicts."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def chart(key: str, title: str, unit: str) -> str:
    """The place of a chart, which the page's script fills."""
    return (
        f'<figure class="chart" id="chart-{escape(key)}"><figcaption><b>{escape(title)}</b> '
        f'<span class="unit">{escape(unit)}</span></figcaption><div class="plot"></div></figure>'
    )


def choice(key: str, title: str, options: Sequence[str]) -> str:
    """A labelled list to choose from; values are the numbers of the options."""
    made = "".join(f'<option value="{number}">{escape(name)}</option>' for number, name in enumerate(options))
    return f'<label for="{key}">{escape(title)} <select id="{key}">{made}</select></label>'


def code(lines: Iterable[str]) -> str:
    """Lines for a terminal."""
    return f'<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'


def details(title: str, content: str) -> str:
    """What is folded away until it is asked for."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def json_block(key: str, values: Any) -> str:
    """Values for the page's script; nothing in them can end the block."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f'<script type="application/json" id="{key}">{text.replace("<", chr(92) + "u003c")}</script>'


def _cells(row: Sequence[str], left: int) -> str:
    first, *others = row
    cells = [f'<th scope="row">{escape(first)}</th>']
    cells += [f"<td{_left(number, left)}>{escape(text)}</td>" for number, text in enumerate(others, start=1)]
    return "".join(cells)


def _left(number: int, left: int) -> str:
    return "" if number < left else ' class="number"'
