"""The sections about training: figures, plans, gradients, sensitive layers, environment, commands."""

from __future__ import annotations

import shlex
from typing import Any

from lowbit.report import elements
from lowbit.report.elements import (
    NOTHING,
    decibels,
    details,
    heading,
    number,
    paragraph,
    percent,
    section,
    table,
)
from lowbit.report.run_files import ALONE, Run
from lowbit.report.summary import figures

_SICKEST = 8  # rows of gradients that are shown at once


def throughput_note(runs: list[Run]) -> str:
    """Why images a second are not shown for some of the runs; empty where they are shown for all."""
    busy, unknown = [], []
    for run in runs:
        used = [value for _, value in run.points("train", "other_processes")]
        if run.speeds() or not run.of_kind("train"):
            continue
        if used:
            busy.append(f"{run.name} (other processes used {100 * min(used):.0f} % of the processor)")
        else:
            unknown.append(run.name)
    parts = [f"busy during {', '.join(busy)}"] if busy else []
    parts += [f"not recorded for {', '.join(unknown)}"] if unknown else []
    if not parts:
        return ""
    return (
        "Images a second are shown only for epochs in which other processes used at most "
        f"{100 * ALONE:.0f} % of the processor. The machine's load: {'; '.join(parts)}."
    )


def summary(runs: list[Run]) -> str:
    """The figures of all runs, side by side."""
    columns = [figures(run) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, NOTHING) for column in columns)] for name in names]
    shown = [row for row in rows if any(cell != NOTHING for cell in row[1:])]
    title = "Figures of training, export and engines"
    return section("summary", "Summary", table(title, ["", *(run.name for run in runs)], shown))


def plans(runs: list[Run]) -> str:
    """What is quantized in each layer."""
    content = []
    for run in runs:
        if layers := run.plan:
            quantized = sum(layer["quantized"] for layer in layers)
            title = f"{run.name}: {quantized} of {len(layers)} layers are quantized ({run.precision})"
            content.append(details(title, _plan_table(run.name, layers)))
    return section("plan", "Plan", *content) if content else ""


def _plan_table(name: str, layers: list[dict[str, Any]]) -> str:
    rows = []
    for layer in layers:
        plan = layer["plan"]
        integers = [product for product, reason in layer["why_not_in_integers"].items() if reason is None]
        rows.append(
            [
                layer["name"],
                layer["type"],
                "×".join(map(str, layer["shape"])),  # noqa: RUF001 (the sign of multiplication)
                *(_spec(plan["forward"], operand) for operand in ("input", "weight")),
                *(_spec(plan[product], "grad_output") for product in ("grad_input", "grad_weight")),
                ", ".join(integers) or "none",
                layer["note"],
            ]
        )
    head = ["layer", "type", "weight", "forward input", "forward weight"]
    head += ["gradient in grad_input", "gradient in grad_weight", "can run in integers", "note"]
    empty = [index for index in range(len(head)) if all(not row[index] for row in rows)]
    kept = [index for index in range(len(head)) if index not in empty]
    rows = [[row[index] for index in kept] for row in rows]
    return table(f"The plan of {name}", [head[index] for index in kept], rows, left=len(head))


def _spec(product: dict[str, Any] | None, operand: str) -> str:
    if product is None:
        return ""
    words = product[operand]
    if words["grid"] in ("full", "bf16", "fp16"):
        return words["grid"]
    usual = {"observer": "minmax", "scaling": "dynamic", "rounding": "nearest", "clip": "none"}
    more = [words[key] for key, word in usual.items() if words[key] != word]
    return " ".join([words["grid"], words["granularity"], *more])


def gradients(runs: list[Run]) -> str:
    """The last epoch's health of every quantized gradient, the lowest SQNR first."""
    content = []
    for run in runs:
        records = run.of_kind("health")
        rows = [
            (numbers.get("sqnr"), name, operand.split(".")[0], numbers)
            for name, operands in (records[-1]["layers"] if records else {}).items()
            for operand, numbers in operands.items()
            if operand.endswith("grad_output")
        ]
        if not rows:
            continue
        rows.sort(key=lambda row: float("inf") if row[0] is None else row[0])
        cells = [
            [
                *(
                    name,
                    product,
                    decibels(sqnr),
                    number(found.get("gain"), 3),
                    percent(found.get("underflowed")),
                ),
                *(percent(found.get("clipped")), number(found.get("bias"), 2)),
                number(found.get("variance_ratio"), 3),
            ]
            for sqnr, name, product, found in rows
        ]
        head = ["layer", "product", "SQNR", "gain", "became 0", "clipped", "bias", "variance ratio"]
        caption = f"{run.name}: gradients in epoch {records[-1]['epoch'] + 1}, lowest SQNR first"
        content.append(table(caption, head, cells[:_SICKEST], left=2))
        if rest := cells[_SICKEST:]:
            others = table(f"{run.name}: the other gradients", head, rest, left=2)
            content.append(details(f"{len(rest)} more of {run.name}", others))
    if not content:
        return ""
    note = "At 0 dB the error is as large as the gradient; gain 1 means that nothing is lost on average."
    return section("gradients", "Health of the gradients", paragraph(note, "note"), *content)


def sensitivities(runs: list[Run]) -> str:
    """What `lowbit analyze` measured, if it was run."""
    content = []
    for run in runs:
        for found in run.analyses():
            gradients = any(one.get("gradient_sqnr") is not None for one in found["ranking"])
            rows = [
                [
                    *(one["name"], one["bits"], f"{one['only_loss']:+.4f}", f"{-one['without_loss']:+.4f}"),
                    *(percent(one["only_top1"]), decibels(one["weight_sqnr"]), decibels(one["input_sqnr"])),
                    *([decibels(one["gradient_sqnr"])] if gradients else []),
                ]
                for one in found["ranking"]
            ]
            head = ["layer", "bits", "loss, only it", "loss, all but it", "top-1, only it"]
            head += ["SQNR of weight", "SQNR of input", *(["SQNR of gradient"] if gradients else [])]
            content.append(table(f"{run.name}: {found['title']}", head, rows, left=2))
    note = "What costs most first: by the loss that a layer adds when it alone is quantized."
    return section("sensitivity", "Sensitive layers", paragraph(note, "note"), *content) if content else ""


def environment(runs: list[Run]) -> str:
    """What the runs were made with; only the first column where all are the same."""
    records = [{"lowbit": run.record.get("lowbit", "")} | run.record.get("environment", {}) for run in runs]
    started = [{"started": run.record.get("started", "")} for run in runs]
    keys = dict.fromkeys(key for record in records for key in record)
    if all(record == records[0] for record in records):
        head, rows = ["", "every run"], [[key, records[0][key]] for key in keys]
    else:
        head = ["", *(run.name for run in runs)]
        rows = [[key, *(record.get(key, NOTHING) for record in records)] for key in keys]
    when = [[run.name, one["started"]] for run, one in zip(runs, started, strict=True)]
    return section(
        *(
            "environment",
            "Environment",
            table("Software, processor and settings", head, rows, left=len(head)),
        ),
        table("Started", ["run", "time"], when, left=2),
    )


def commands(runs: list[Run]) -> str:
    """How to make the same again."""
    content = []
    for run in runs:
        content += [heading(run.name), elements.commands(reproduce(run))]
    note = (
        "The first line is how the run was started; the second gives the same from the config that it kept."
    )
    return section("reproduce", "Reproduce", paragraph(note, "note"), *content)


def reproduce(run: Run) -> list[str]:
    """The commands of a run, in their order."""
    folder = shlex.quote(str(run.path))
    started = run.record.get("command")
    lines = [shlex.join(_called(started))] if started else []
    if run.of_kind("train"):  # a run that only calibrated is made by its first line alone
        lines.append(f"lowbit train -c {folder}/config.yaml --output-dir {folder}-again")
    if (run.path / "export").is_dir():
        lines.append(f"lowbit export {folder}")
    if run.verify is not None:
        lines.append(f"lowbit verify {folder} --images {run.verify['images']}")
    if run.advice is not None:
        lines.append(f"lowbit advise {folder} --images {run.advice['samples']}")
    return lines


def _called(command: list[str]) -> list[str]:
    program, *rest = command
    if program == "__main__.py":
        return ["python", "-m", "lowbit", *rest]
    return ["python", program, *rest] if program.endswith(".py") else command
