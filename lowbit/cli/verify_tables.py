"""What `lowbit verify` prints: one table per question, and a sentence where a figure needs one."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lowbit.deploy.verify import Agreement, EngineReport, LayerDifference, Report, Size


def print_report(report: Report, sizes: list[Size]) -> None:
    """All tables, then what they say."""
    # As wide as it must be where nobody watches: a folded table is no use to grep or to a file.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    console.print(f"[bold]Answers[/bold] on {report.model.images} images")
    console.print(_answers(report))
    for line in _about_answers(report):
        console.print(Text(line), soft_wrap=True)
    for engine in report.engines:
        if engine.layers is not None:
            console.print(f"\n[bold]Layers[/bold] in {engine.name}: the integers that each takes")
            console.print(_layers(engine.layers))
    console.print("\n[bold]Sizes[/bold]")
    console.print(_sizes(sizes))
    if any(engine.latency for engine in report.engines):
        console.print("\n[bold]Latency[/bold], fp32 and quantized in turns in the same engine")
        console.print(_latency(report))
    console.print()
    for line in conclusion(report):
        console.print(Text(line), soft_wrap=True)


def conclusion(report: Report) -> list[str]:
    """The verdict, and the guilty layer of every engine that fails."""
    lines = []
    if not report.evidence.conclusive:
        reason = report.evidence.reason
        lines.append(f"Agreement proves little: {reason}. The distance of the outputs decides, too.")
    for engine in report.engines:
        lines.append(report.verdict(engine))
        if engine in report.failing:
            lines += [f"  {line}" for line in _whose_fault(engine)]
    return lines


def _whose_fault(engine: EngineReport) -> list[str]:
    if engine.layers is None:
        return ["its layers cannot be looked into; those of ONNX Runtime and OpenVINO can"]
    if engine.guilty:
        return [f"the first layer that departs: {' or '.join(engine.guilty)}"]
    worst = min(engine.layers, key=lambda row: row.by_itself.sqnr)
    return [
        "no layer departs by itself; small differences add up. The largest arises before "
        f"{worst.name} (SQNR {_decibels(worst.by_itself.sqnr)})"
    ]


def _answers(report: Report) -> Table:
    titles = ("top-1", "top-5", "same class", "at least", "max difference", "mean difference")
    table = _table("", *titles, "relative error", "ms per image")
    if report.fp32 is not None:
        _add_answers(table, "fp32, before quantization", report.fp32)
    _add_answers(table, "trained model", report.model)
    if report.integers is not None:
        _add_answers(table, "integer reference", report.integers)
    for engine in report.engines:
        _add_answers(table, engine.name, engine.result)
    return table


def _add_answers(table: Table, name: str, result: Agreement) -> None:
    table.add_row(
        Text(name),
        _percent(result.top1),
        _percent(result.top5),
        _percent(result.agreement),
        _percent(result.agreement_lower),
        f"{result.max_difference:.3g}",
        f"{result.mean_difference:.2g}",
        f"{100 * result.relative_error:.2g} %",
        f"{1000 * result.seconds / result.images:.2f}",
    )


def _about_answers(report: Report) -> list[str]:
    lines = []
    if report.integers is None:
        lines.append("The model is not quantized: its plain export is compared.")
    elif report.fp32 is None:
        lines.append("There is no fp32 model beside the run to compare with (checkpoints/fp32.lowbit).")
    else:
        change = 100 * (report.model.top1 - report.fp32.top1)
        lines.append(f"Quantized minus fp32: {change:+.2f} points of top-1.")
    if report.integers is not None:
        if report.integers_unequal == 0:
            lines.append(
                f"Integer reference: all {report.integers_compared} integers of all quantized layers are "
                "exactly the trained model's."
            )
        else:
            lines.append(
                f"Integer reference: {report.integers_unequal} of {report.integers_compared} integers are "
                f"not the trained model's, the first of them in {report.integers_first_layer}: sums before "
                "it exceed 2^24, up to which fp32 is exact."
            )
    lines += [engine.note for engine in report.engines if engine.note]
    return lines


def _layers(rows: list[LayerDifference]) -> Table:
    from lowbit.deploy.verify.layers import LOGITS

    table = _table("layer", "made by", left=2)
    for title in ("by itself\nmax", "\ndiffer", "\nSQNR", "altogether\nmax", "\ndiffer", "\nSQNR", ""):
        table.add_column(title, justify="right")
    for row in rows:
        cells = []
        for steps in (row.by_itself, row.altogether):
            differ = "" if row.name == LOGITS else _percent(steps.differing)  # floats always do
            cells += [f"{steps.largest:.3g}", differ, _decibels(steps.sqnr)]
        makers = ", ".join(row.made_by[:2]) + (", …" if len(row.made_by) > 2 else "")
        table.add_row(Text(row.name), Text(makers or "the image"), *cells, "departs" if row.departs else "")
    return table


def _sizes(sizes: list[Size]) -> Table:
    table = _table("format", "fp32", "exported", "smaller")
    for size in sizes:
        fp32 = "" if size.fp32 is None else _megabytes(size.fp32)
        ratio = "" if size.ratio is None else f"{size.ratio:.2f}x"
        table.add_row(size.format, fp32, _megabytes(size.exported), ratio)
    return table


def _latency(report: Report) -> Table:
    table = _table("engine", "threads", "batch", "fp32 ms", "quantized ms", "ratio", "half between")
    table.add_column("")
    for engine in report.engines:
        for found in engine.latency:
            table.add_row(
                Text(engine.name),
                str(found.threads),
                str(found.batch_size),
                f"{found.fp32_ms:.3g}",
                f"{found.quantized_ms:.3g}",
                f"{found.ratio:.2f}x",
                f"{found.lower:.2f} … {found.upper:.2f}",
                found.verdict(),
            )
    return table


def _table(*titles: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number < left else "right", overflow="fold")
    return table


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.2f} %"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3f} MB"


def _decibels(value: float) -> str:
    return "equal" if value == math.inf else f"{value:.1f} dB"
