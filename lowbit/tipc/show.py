"""Shows a plan: a table for people, JSON values for programs."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowbit.tipc.step import ChainPlan, Step


def print_plan(plan: ChainPlan) -> None:
    """The steps as a table, then what is to be said about them, then a sum."""
    # As wide as it must be where nobody watches: a folded table is no use to grep or to a file.
    console = Console(width=None if sys.stdout.isatty() else 100_000)
    console.print(Text(f"{plan.config} ({plan.layout}-line layout), {plan.mode}, in {plan.root}"))
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
    """A step as one could type it: what it adds to the environment, its quoted arguments, its log."""
    taken_out = [f"-u {name}" for name, value in step.environment.items() if value is None]
    settings = [
        f"{name}={shlex.quote(value)}" for name, value in step.environment.items() if value is not None
    ]
    return " ".join(
        (
            *(["env", *taken_out] if taken_out else []),
            *settings,
            shlex.join(step.arguments),
            ">",
            shlex.quote(step.log),
            "2>&1",
        )
    )


def plan_values(plan: ChainPlan) -> dict[str, Any]:
    """The plan in JSON's types, with every field of every step."""
    return {
        "config": plan.config,
        "layout": plan.layout,
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
            }
            for step in plan.steps
        ],
    }
