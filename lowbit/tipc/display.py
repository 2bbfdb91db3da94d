"""Shows plans and results: tables, JSON values, and progress while a chain runs."""

from __future__ import annotations

import shlex
import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.status import Status as Spinner
from rich.table import Table
from rich.text import Text

from lowbit.tipc.result import ChainResult, ChainStepResult, Status
from lowbit.tipc.steps import ChainPlan, Step, in_directory


def print_plan(plan: ChainPlan) -> None:
    """Print the steps as a table, the plan's notes, and the number of commands."""
    # Outside a terminal nothing is folded, so that grep finds whole lines.
    console = Console(width=None if sys.stdout.isatty() else 100_000)
    dialect = f", {plan.dialect}" if plan.dialect != "generic" else ""
    console.print(Text(f"{plan.config} ({plan.layout}-line layout{dialect}), {plan.mode}, in {plan.root}"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    table.add_column("step")
    table.add_column("command", overflow="fold")
    for number, step in enumerate(plan.steps, 1):
        remark = f"\nskipped: {step.skipped}" if step.skipped else f"\n({step.note})" if step.note else ""
        style = "dim" if step.skipped else ""
        cells = (str(number), step.kind.value, command_text(step) + remark)
        table.add_row(*(Text(cell, style=style) for cell in cells))
    console.print(table)
    for note in plan.notes:
        console.print(Text(f"Note: {plan.config}, {note}"), soft_wrap=True)
    skipped = sum(step.skipped is not None for step in plan.steps)
    console.print(f"{len(plan.steps)} commands" + (f", {skipped} of them skipped" if skipped else "") + ".")


def command_text(step: Step) -> str:
    """A step as a shell command for the root: directory, environment, arguments and log."""
    taken_out = [f"-u {name}" for name, value in step.environment.items() if value is None]
    settings = [
        f"{name}={shlex.quote(value)}" for name, value in step.environment.items() if value is not None
    ]
    words = (*(["env", *taken_out] if taken_out else []), *settings, shlex.join(step.arguments))
    return f"{in_directory(step, ' '.join(words))} > {shlex.quote(step.log)} 2>&1"


def plan_values(plan: ChainPlan) -> dict[str, Any]:
    """The plan in JSON's types, with every field of every step."""
    return {
        "config": plan.config,
        "layout": plan.layout,
        "dialect": plan.dialect,
        "model_name": plan.model_name,
        "mode": plan.mode,
        "root": str(plan.root),
        "output": plan.output,
        "results_log": plan.results_log,
        "notes": list(plan.notes),
        "steps": [
            {
                "name": step.name,
                "kind": step.kind.value,
                "arguments": list(step.arguments),
                "environment": dict(step.environment),
                "log": step.log,
                "folder": step.folder,
                "weights": step.weights,
                "image": step.image,
                "leaves": step.leaves,
                "needs": list(step.needs),
                "skipped": step.skipped,
                "note": step.note,
                "quantized": step.quantized,
                "directory": step.directory,
                "links": dict(step.links),
            }
            for step in plan.steps
        ],
    }


_STYLES = {Status.PASSED: "green", Status.FAILED: "red", Status.SKIPPED: "yellow", Status.NOT_RUN: "yellow"}


def print_result(result: ChainResult) -> None:
    """Print the steps as a table, the notes, and the verdict."""
    # Outside a terminal nothing is folded, so that grep finds whole lines.
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


def _remark(step: ChainStepResult) -> str:
    if step.status is not Status.PASSED:
        return step.reason or ""
    done = list(dict.fromkeys(check.name for check in step.checks if check.passed))
    parts = ([f"checked: {', '.join(done)}"] if done else []) + [
        f"not confirmed: {check.name}" for check in step.checks if check.passed is None
    ]
    return "; ".join(parts)


def verdict(result: ChainResult) -> str:
    """The last line of the table."""
    counts = ", ".join(f"{number} {word}" for word, number in result.counts.items() if number)
    parts = f"{result.model_name}, {result.mode}: {counts}, in {result.seconds:.0f} s."
    if result.unwritten:
        return f"Failed: {result.unwritten}. {parts}"
    if result.interrupted:
        return f"Interrupted. {parts}"
    if not result.finished:
        return f"Not finished: the run was killed, or is still running. {parts}"
    if result.passed:
        return f"Passed. {parts}"
    if not result.counts["passed"] + result.counts["failed"]:
        return f"Nothing ran. {parts} --device cpu runs on the CPU what needs a card."
    return f"Failed. {parts}"


_QUIET = 30.0  # seconds between two signs of life in a log


class Display:
    """Plain lines, for logs and pipes."""

    def __init__(self) -> None:
        self._last = 0.0

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def begin(self, number: int, total: int, kind: str, name: str) -> None:
        """A step starts."""
        self._last = time.monotonic()
        print(f"[{number}/{total}] {kind} {name}", flush=True)

    def line(self, text: str) -> None:
        """A line of the step's output; one is shown every 30 seconds."""
        if time.monotonic() - self._last > _QUIET:
            self._last = time.monotonic()
            print(f"    {text}", flush=True)

    def warn(self, text: str) -> None:
        """A warning that belongs to no step."""
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def end(self, result: ChainStepResult, status_line: str) -> None:
        """A step ends: its status line, and the reason if it did not pass."""
        print(status_line, flush=True)
        for text in _remarks(result):
            print(f"    {text}", flush=True)


class TerminalChainDisplay(Display):
    """A spinner with the step and its last line; status lines in yellow, as in the original."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(highlight=False)
        self._spinner: Spinner | None = None
        self._title = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def begin(self, number: int, total: int, kind: str, name: str) -> None:
        self._stop()
        self._title = f"[{number}/{total}] {kind} {name}"
        self._spinner = self._console.status(Text(self._title))
        self._spinner.start()

    def line(self, text: str) -> None:
        if self._spinner is not None:
            shown = Text(f"{self._title}\n  {text}", no_wrap=True, overflow="ellipsis")
            self._spinner.update(shown)

    def end(self, result: ChainStepResult, status_line: str) -> None:
        self._stop()
        style = "red" if result.status is Status.FAILED else "yellow"
        self._console.print(Text(status_line, style=style), soft_wrap=True)
        for text in _remarks(result):
            self._console.print(Text(f"    {text}"), soft_wrap=True)

    def _stop(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


def _remarks(result: ChainStepResult) -> list[str]:
    failed = [f"failed: {result.reason}", f"its log: {result.log}"] if result.status is Status.FAILED else []
    return [*failed, *result.notes, *(f"not confirmed: {text}" for text in result.unconfirmed)]


def open_display() -> Display:
    """A TerminalChainDisplay in a terminal, else plain lines."""
    return TerminalChainDisplay() if sys.stdout.isatty() else Display()
