"""The tables of a verification, and the verdict of every engine."""

from __future__ import annotations

from collections.abc import Sequence

from lowbit.deploy.verify.agreement import Agreement
from lowbit.deploy.verify.candidates import Size
from lowbit.deploy.verify.comparison import EngineReport, Report
from lowbit.deploy.verify.layer_differences import LOGITS, LayerDifference
from lowbit.formatting import Section, bytes_text, decibels, number, percent, points, times


def report_sections(report: Report, sizes: Sequence[Size]) -> list[Section]:
    """All tables, then the verdicts.

    print(as_text(report_sections(report, sizes)))
    """
    sections = [_answers(report)]
    sections += [_layers(engine) for engine in report.engines if engine.layers is not None]
    sections.append(_sizes(sizes))
    if any(engine.latency for engine in report.engines):
        sections.append(_latency(report))
    return [*sections, Section("", lines=tuple(conclusion(report)))]


def conclusion(report: Report) -> list[str]:
    """The verdict on every engine, and the first differing layer of those that fail."""
    lines = []
    if not report.evidence.conclusive:
        reason = report.evidence.reason
        lines.append(f"Agreement proves little: {reason}. The distance of the outputs decides, too.")
    for engine in report.engines:
        lines.append(report.verdict(engine))
        if engine in report.failing:
            lines += [f"  {line}" for line in _failing_layer(engine)]
    return lines


def _failing_layer(engine: EngineReport) -> list[str]:
    if engine.layers is None:
        return ["its layers cannot be looked into; those of ONNX Runtime and OpenVINO can"]
    if engine.wrong_layers:
        return [f"the first wrong layer: {' or '.join(engine.wrong_layers)}"]
    worst = min(engine.layers, key=lambda row: row.by_itself.sqnr)
    return [
        "no layer is wrong by itself; small differences add up. The largest arises before "
        f"{worst.name} (SQNR {decibels(worst.by_itself.sqnr)} dB)"
    ]


def _answers(report: Report) -> Section:
    named = [("fp32, before quantization", report.fp32), ("trained model", report.model)]
    named += [("integer reference", report.integers)]
    named += [(engine.name, engine.result) for engine in report.engines]
    wide = ("top-5", "mean diff.", "rel. error", "ms per image")
    return Section(
        f"Answers on {report.model.images} images",
        ("", "top-1", "same class", "at least", "max diff.", *wide),
        tuple((_on(name, result, report), *_answer(result)) for name, result in named if result is not None),
        tuple(_about_answers(report)),
        wide=wide,
    )


def _on(name: str, result: Agreement, report: Report) -> str:
    """With the number of images, if they are not all."""
    return name if result.images == report.model.images else f"{name} ({result.images})"


def _answer(result: Agreement) -> tuple[str, ...]:
    return (
        percent(result.top1),
        percent(result.agreement),
        percent(result.agreement_lower),
        number(result.max_difference),
        percent(result.top5),
        number(result.mean_difference),
        f"{number(100 * result.relative_error)} %",
        number(1000 * result.seconds / result.images),
    )


def _about_answers(report: Report) -> list[str]:
    lines = []
    if report.integers is None:
        lines.append("The model is not quantized: its plain export is compared.")
    elif report.fp32 is not None and report.model.top1 is not None and report.fp32.top1 is not None:
        change = points(report.model.top1 - report.fp32.top1)
        lines.append(f"Quantized minus fp32: {change} points of top-1.")
    if report.integers is not None:
        if report.by_network is not None:
            lines.append(
                f"The trained model itself computed {report.by_network} of the images, spread evenly: all "
                f"{report.integers_compared:,} integers of all quantized layers are those of the integer "
                "reference (lowbit's runtime), which stands in for the model on the others."
            )
        elif report.integers_unequal == 0:
            some = report.integers_images < report.model.images
            on = f" on {report.integers_images} images" if some else ""
            lines.append(
                f"Integer reference: all {report.integers_compared:,} integers of all quantized layers{on} "
                "are exactly the trained model's."
            )
        else:
            lines.append(
                f"Integer reference: {report.integers_unequal:,} of {report.integers_compared:,} integers "
                f"are not the trained model's, the first of them in {report.integers_first_layer}: sums "
                "before it exceed 2^24, up to which fp32 is exact."
            )
    answers = [report.integers, *(engine.result for engine in report.engines)]
    samples = {one.images for one in answers if one is not None and one.images < report.model.images}
    lines += [
        f"({count}): on a sample of {count} images. Its top-1 cannot be compared with that of all images."
        for count in sorted(samples)
    ]
    return lines + [engine.note for engine in report.engines if engine.note]


def _layers(engine: EngineReport) -> Section:
    wide = ("made by", "all: max", "all: differ", "all: SQNR dB")
    return Section(
        f"Layers in {engine.name}: the integers that each takes",
        ("layer", "made by", "", "max", "differ", "SQNR dB", *wide[1:]),
        tuple(_layer(row) for row in engine.layers or ()),
        (
            "Each layer by itself: before it, the engine computes what the model does.",
            "all (with --wide): with the differences of the layers before it.",
        ),
        left=3,
        wide=wide,
    )


def _layer(row: LayerDifference) -> tuple[str, ...]:
    cells: list[str] = []
    for steps in (row.by_itself, row.altogether):
        differ = "" if row.name == LOGITS else percent(steps.differing)  # floats always do
        cells += [number(steps.largest), differ, decibels(steps.sqnr)]
    makers = ", ".join(row.made_by[:2]) + (", …" if len(row.made_by) > 2 else "")
    return (row.name, makers or "the image", "wrong" if row.is_wrong else "", *cells)


def _sizes(sizes: Sequence[Size]) -> Section:
    rows = tuple(
        (size.format, bytes_text(size.fp32), bytes_text(size.exported), times(size.ratio)) for size in sizes
    )
    return Section("Sizes", ("format", "fp32", "exported", "smaller"), rows)


def _latency(report: Report) -> Section:
    rows = tuple(
        (
            engine.name,
            str(found.batch_size),
            number(found.fp32_ms),
            number(found.quantized_ms),
            times(found.ratio),
            f"{times(found.lower)} to {times(found.upper)}",
            str(found.threads),
        )
        for engine in report.engines
        for found in engine.latency
    )
    columns = ("engine", "batch", "fp32 ms", "quantized ms", "faster", "middle half", "threads")
    lines = tuple(
        f"{engine.name}, batch {found.batch_size}: {found.verdict()}"
        for engine in report.engines
        for found in engine.latency
    )
    title = "Latency, fp32 and quantized in turns in the same engine"
    return Section(title, columns, rows, lines, wide=columns[-2:])
