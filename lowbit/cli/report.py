"""`lowbit report` and `lowbit compare`: runs side by side, as a page and in the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import AsJson, Quiet, TrustCode, Wide, show
from lowbit.errors import LowbitError
from lowbit.formatting import Section, bytes_text


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, to be overlaid.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="The page; default: report.html in the last run."),
    ] = None,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML report: verdict, curves, predictions, layers, plan, verification, sizes.

    **Examples**

    - `lowbit report runs/w4a4` writes `runs/w4a4/report.html`
    - `lowbit report runs/fp32 runs/w8a8 runs/w4a4 --output compare.html` overlays three runs
    """
    from lowbit.report import write_report

    page = output or runs[-1] / "report.html"
    for line in write_report(runs, page, trust=trust_code):
        if not (quiet or as_json):
            print(line, file=sys.stderr)
    if as_json:
        print(json.dumps({"report": str(page), "size": page.stat().st_size}))
    else:
        print(f"Report: {page} ({bytes_text(page.stat().st_size)})")


_WIDEST = 60  # letters of a setting; a recipe written into a config has many more


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders.", show_default=False)],
    wide: Wide = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the figures only, no settings.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show runs side by side: accuracy, loss, speed, size, verification, and where their configs differ.

    **Example**: `lowbit compare runs/fp32 runs/w8a8 runs/w4a4`
    """
    from lowbit.report import config_differences, figures, open_runs
    from lowbit.report.elements import NOTHING

    if len(runs) < 2:
        raise LowbitError("give two runs or more to compare; one alone is shown by `lowbit report`")
    opened = open_runs(runs)
    columns, differing = [figures(run) for run in opened], config_differences(opened)
    if as_json:
        found = {run.name: column for run, column in zip(opened, columns, strict=True)}
        print(json.dumps({"figures": found, "config": differing}, indent=2, ensure_ascii=False))
        return
    figure_names = dict.fromkeys(name for column in columns for name in column)
    rows = {name: [column.get(name, NOTHING) for column in columns] for name in figure_names}
    known = {name: cells for name, cells in rows.items() if any(cell != NOTHING for cell in cells)}
    names = tuple(run.name for run in opened)
    sections = [_table("Figures", names, known, left=1)]
    if differing and not quiet:
        sections.append(_table("Settings that differ", names, differing, left=1 + len(names)))
    elif not quiet:
        sections.append(Section("No settings differ."))
    show(sections, wide=wide)


def _table(title: str, names: tuple[str, ...], cells: dict[str, list[str]], left: int) -> Section:
    rows = tuple((name, *map(_short, values)) for name, values in cells.items())
    return Section(title, ("", *names), rows, left=left)


def _short(words: str) -> str:
    return words if len(words) <= _WIDEST else f"{words[: _WIDEST - 1]}…"
