"""`lowbit compare`: runs side by side in the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import AsJson, Wide
from lowbit.cli.output import show
from lowbit.errors import LowbitError
from lowbit.formatting import Section

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
    from lowbit.report.formatting import NOTHING

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
