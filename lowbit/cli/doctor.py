"""`lowbit doctor`: what this machine can do, and what each missing thing costs."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowbit.cli.checkup import Finding, checkup
from lowbit.cli.options import AsJson

_SIGNS = {"ok": Text("ok", "green"), "missing": Text("-", "yellow"), "broken": Text("!", "bold red")}


def doctor(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only what is missing or broken.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what this machine can do: processor, compiler, Paddle, engines; and what is missing, at what cost.

    **Examples**: `lowbit doctor`, or for a bug report `lowbit doctor --json`
    """
    findings = list(checkup())
    if as_json:
        typer.echo(json.dumps([finding.as_dict() for finding in findings], indent=2, ensure_ascii=False))
    else:
        shown = [finding for finding in findings if finding.status != "ok"] if quiet else findings
        print_findings(shown, Console())


def print_findings(findings: list[Finding], console: Console) -> None:
    """The table, with advice under the finding it belongs to."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(justify="center")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        # Text and not markup: a compiler's version may hold square brackets.
        table.add_row(_SIGNS[finding.status], finding.name, Text(finding.value))
        if finding.advice:
            table.add_row("", "", Text(finding.advice, "yellow"))
    console.print(table)
    broken = [finding.name for finding in findings if finding.status == "broken"]
    if broken:
        console.print(Text(f"needs repair: {', '.join(broken)}", "bold red"))
