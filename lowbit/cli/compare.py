"""`lowbit compare`: runs side by side in the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from lowbit.errors import LowbitError

_WIDEST = 60  # letters of a setting; a recipe written into a config has many more


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show runs side by side: accuracy, loss, speed, size, verification, and where their configs differ.

    **Example**: `lowbit compare runs/fp32 runs/w8a8 runs/w4a4`
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
    names = dict.fromkeys(name for column in columns for name in column)
    rows = {name: [column.get(name, NOTHING) for column in columns] for name in names}
    known = {name: cells for name, cells in rows.items() if any(cell != NOTHING for cell in cells)}
    # As wide as it must be where nobody watches: a folded table is no use to grep or to a file.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    for title, shown in (("Figures", known), ("Settings that differ", differing)):
        console.print(f"[bold]{title}[/bold]" if shown else "No settings differ.")
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("")
        for run in opened:
            table.add_column(Text(run.name), justify="right" if shown is known else "left", overflow="fold")
        for name, cells in shown.items():
            table.add_row(Text(name), *(Text(_short(cell)) for cell in cells))
        if shown:
            console.print(table)
        console.print()


def _short(words: str) -> str:
    return words if len(words) <= _WIDEST else f"{words[: _WIDEST - 1]}…"
