"""The numbers behind the charts, rounded to what can be seen and thinned to what a screen can show."""

from __future__ import annotations

import math
from typing import Any

from lowbit.report.run_files import Points, Run

MOST_POINTS = 200  # of a series; of more epochs every second (third, …) is shown, and the last
_DIGITS = 4
# What is drawn of an operand's health. Only a gradient's `gain` is worth a curve: it shrinks unnoticed.
_QUANTITIES = ("sqnr", "scale", "clipped", "underflowed")
_OF_GRADIENTS = (*_QUANTITIES, "gain")

# id, title, what the numbers are, and which records they are from: kind and key
CURVES: tuple[tuple[str, str, str, tuple[tuple[str, str], ...]], ...] = (
    ("loss", "Loss", "cross entropy, or what is trained", (("train", "loss"), ("eval", "loss"))),
    ("top1", "Top-1 accuracy", "fraction of the images", (("train", "top1"), ("eval", "top1"))),
    ("lr", "Learning rate", "at the end of an epoch", (("train", "lr"),)),
    ("speed", "Throughput", "images a second, in training", (("train", "images_per_second"),)),
)
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
            | _xy(run.points(kind, name))
            for number, run in enumerate(runs)
            for kind, name in sources
        ]
        if any(one["x"] for one in series):
            found.append({"id": key, "title": title, "unit": unit, "series": [s for s in series if s["x"]]})
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


def shorten(value: float | None, digits: int = _DIGITS) -> float | None:
    """A number with so many significant digits; None, JSON's null, where it is no number.

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
