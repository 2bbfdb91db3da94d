"""The numbers behind the charts, rounded to what can be seen and thinned to what a screen can show."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lowbit.errors import LowbitError
from lowbit.nn.inspect import layers_by_name, weight_histogram
from lowbit.report.elements import Point
from lowbit.report.run_files import Points, Run
from lowbit.report.summary import Verdict
from lowbit.training.checkpoint import find_checkpoint
from lowbit.training.trained_model import open_checkpoint

MOST_POINTS = 200  # of a series; of more epochs every second (third, …) is shown, and the last
_DIGITS = 4
# What is drawn of an operand's health. Only a gradient's `gain` is worth a curve: it shrinks unnoticed.
_QUANTITIES = ("sqnr", "scale", "clipped", "underflowed", "oscillating", "frozen")
_OF_GRADIENTS = (*_QUANTITIES, "gain")

# id, title, what the numbers are, and which records they are from: kind and key
CURVES: tuple[tuple[str, str, str, tuple[tuple[str, str], ...]], ...] = (
    ("loss", "Loss", "cross entropy, or what is trained", (("train", "loss"), ("eval", "loss"))),
    ("top1", "Top-1 accuracy", "percent of the images", (("train", "top1"), ("eval", "top1"))),
    ("lr", "Learning rate", "at the end of an epoch", (("train", "lr"),)),
    ("speed", "Throughput", "images a second, in training", (("train", "images_per_second"),)),
)
_ZOOMED = ("loss", "top1")  # late differences are small against the first epochs' progress
_WHOSE = {"train": "training", "eval": "validation"}


def curves(runs: list[Run]) -> list[dict[str, Any]]:
    """A chart per figure with the runs overlaid; figures that no run has are left out.

    curves(open_runs([Path("runs/digits")]))[0]["series"][0]["y"]
    """
    found = []
    for key, title, unit, sources in CURVES:
        series = [
            {
                "run": number,
                "label": _label(runs, run, kind, sources),
                "dashed": kind == "train" and len(sources) > 1,
            }
            | _xy(_points(run, kind, name))
            for number, run in enumerate(runs)
            for kind, name in sources
        ]
        if any(one["x"] for one in series):
            series = [one for one in series if one["x"]]
            zoom = _late_range(series) if key in _ZOOMED else None
            found.append({"id": key, "title": title, "unit": unit, "series": series, "zoom": zoom})
    return found


def _points(run: Run, kind: str, name: str) -> Points:
    if name == "images_per_second":
        return run.speeds()
    factor = 100 if name == "top1" else 1
    return [(epoch, factor * value) for epoch, value in run.points(kind, name)]


def _late_range(series: list[dict[str, Any]]) -> list[float] | None:
    """The range of the values in the last third of each series, with a margin; None where that is most of the
    range of all."""
    late, whole = [], []
    for one in series:
        points = [(x, y) for x, y in zip(one["x"], one["y"], strict=True) if y is not None]
        whole += [y for _, y in points]
        late += [y for x, y in points if x > one["x"][-1] * 2 / 3]
    if not late:
        return None
    margin = max(0.1 * (max(late) - min(late)), 1e-3 * max(abs(y) for y in late), 1e-9)
    low, high = min(late) - margin, max(late) + margin
    return [low, high] if high - low < 0.6 * (max(whole) - min(whole)) else None


def tradeoffs(verdicts: list[Verdict]) -> dict[str, list[Point]]:
    """Accuracy in percent over the exported file's size in KB, and over the latency in percent of fp32's.

    A point has a line to where fp32 is, if that was measured. The latency is relative because only fp32 and
    quantized of one run are measured in turns.
    """
    found: dict[str, list[Point]] = {"size": [], "latency": []}
    for index, one in enumerate(verdicts):
        if one.top1 is None:
            continue
        fp32 = None if one.fp32_top1 is None else 100 * one.fp32_top1
        if one.size:
            start = (one.fp32_size / 1e3, fp32) if one.fp32_size and fp32 is not None else None
            found["size"].append(Point(one.run, one.size / 1e3, 100 * one.top1, index, start))
        if one.speedup:
            start = (100.0, fp32) if fp32 is not None else None
            found["latency"].append(Point(one.run, 100 / one.speedup, 100 * one.top1, index, start))
    return found


def layer_series(run: Run) -> dict[str, Any]:
    """Every layer's operands over the epochs: `{epochs, layers: {name: {operand: {sqnr: [...]}}}}`."""
    records = run.of_kind("health")
    records = [records[index] for index in _kept(len(records))]
    layers: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for index, record in enumerate(records):
        for name, operands in record["layers"].items():
            for operand, numbers in operands.items():
                shown = _OF_GRADIENTS if operand.endswith("grad_output") else _QUANTITIES
                kept = layers.setdefault(name, {}).setdefault(operand, {})
                for quantity in shown:
                    if quantity in numbers:
                        row = kept.setdefault(quantity, [None] * len(records))
                        row[index] = shorten(numbers[quantity], 3)
    return {"epochs": [record["epoch"] + 1 for record in records], "layers": layers}


def weight_histograms(path: Path, *, trust: bool = False) -> tuple[dict[str, Any], str]:
    """Of a run's latest checkpoint, by layer; and, where there are none, the reason.

    A report can be made without them, for example of a model whose code is not here.
    """
    found = find_checkpoint(path)
    if found is None:
        return {}, f"no histograms of the weights: {path} has no checkpoint"
    try:
        layers = layers_by_name(open_checkpoint(found, trust=trust).model)
        return {name: weight_histogram(layer).values() for name, layer in layers.items()}, ""
    except LowbitError as error:
        return {}, f"no histograms of the weights: {error}"


def shorten(value: float | None, digits: int = _DIGITS) -> float | None:
    """A number with so many significant digits; None, JSON's null, where it is not a number.

    >>> shorten(0.123456), shorten(1234567.0), shorten(float("nan"))
    (0.1235, 1235000, None)
    """
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def _label(runs: list[Run], run: Run, kind: str, sources: tuple[tuple[str, str], ...]) -> str:
    whose = _WHOSE[kind] if len(sources) > 1 else ""
    return " ".join(part for part in (run.name if len(runs) > 1 or not whose else "", whose) if part)


def _xy(points: Points) -> dict[str, list[float | None]]:
    kept = [points[index] for index in _kept(len(points))]
    return {"x": [x for x, _ in kept], "y": [shorten(y) for _, y in kept]}


def _kept(count: int) -> list[int]:
    """The indices that are shown of so many points.

    >>> _kept(3)
    [0, 1, 2]
    """
    stride = max(1, math.ceil(count / MOST_POINTS))
    kept = list(range(0, count, stride))
    if count and kept[-1] != count - 1:
        kept.append(count - 1)
    return kept
