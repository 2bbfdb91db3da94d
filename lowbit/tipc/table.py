"""A chain's result as a table: every step, what became of it, and why."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowbit.tipc.result import ChainResult, Status, StepResult

_STYLES = {Status.PASSED: "green", Status.FAILED: "red", Status.SKIPPED: "yellow", Status.NOT_RUN: "yellow"}


def print_result(result: ChainResult) -> None:
    """The table, what could not be checked, and the verdict."""
    # As wide as it must be where nobody watches: a folded table is no use to grep or to a file.
    console = Console(width=None if sys.stdout.isatty() else 100_000, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    table.add_column("step", overflow="fold")
    table.add_column("result")
    table.add_column("s", justify="right")
    table.add_column("", overflow="fold")
    for number, step in enumerate(result.steps, 1):
        seconds = f"{step.seconds:.1f}" if step.exit_code is not None else ""
        status = Text(step.status.value, style=_STYLES[step.status])
        table.add_row(str(number), Text(step.name), status, seconds, Text(_remark(step)))
    console.print(table)
    for note in result.notes:
        console.print(Text(f"Note: {result.config}, {note}"), soft_wrap=True)
    console.print(Text(verdict(result)), soft_wrap=True)


def _remark(step: StepResult) -> str:
    if step.status is not Status.PASSED:
        return step.reason or ""
    done = list(dict.fromkeys(check.name for check in step.checks if check.passed))
    parts = ([f"checked: {', '.join(done)}"] if done else []) + [
        f"not checked: {check.name}" for check in step.checks if check.passed is None
    ]
    return "; ".join(parts)


def verdict(result: ChainResult) -> str:
    """One sentence that ends the table."""
    counts = ", ".join(f"{number} {word}" for word, number in result.counts.items() if number)
    parts = f"{result.model_name}, {result.mode}: {counts}, in {result.seconds:.0f} s."
    if result.unwritten:
        return f"Failed: {result.unwritten}. {parts}"
    if result.interrupted:
        return f"Interrupted. {parts}"
    if not result.finished:
        return f"Not finished: the run was killed, or is still going on. {parts}"
    if result.passed:
        return f"Passed. {parts}"
    if not result.counts["passed"] + result.counts["failed"]:
        return f"Nothing ran. {parts} --device cpu runs on the CPU what needs a card."
    return f"Failed. {parts}"
