"""Writes the tables of measured results: `make docs`.

README.md and README.zh.md get that of benchmarks/results.yaml, docs/numbers.md that of all rows of
benchmarks/accuracy.yaml and one for each file of benchmarks/steps/, which `lowbit bench --output` wrote. A
table is between the lines `<!-- results -->` and `<!-- /results -->`, that of a file of steps between
`<!-- steps NAME -->` and `<!-- /steps -->`. Figures that were not measured are empty.
"""

# ruff: noqa: RUF001 (Chinese punctuation, minus and times signs)

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks/results.yaml"
ACCURACY = ROOT / "benchmarks/accuracy.yaml"
STEPS = ROOT / "benchmarks/steps"
STEP_FILES = ("zen5-avx2", "zen5-vnni")  # of the README's two columns
NUMBERS = "docs/numbers.md"
_PLACE = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.DOTALL)
_STEPS_PLACE = re.compile(r"(<!-- steps (\S+) -->\n).*?(?=<!-- /steps -->)", re.DOTALL)


@dataclass(frozen=True)
class Language:
    """The texts of one README."""

    page: str
    columns: tuple[str, ...]
    fp32: str  # shown instead of a recipe
    notes: str  # {steps} and {latency} come from the data
    accuracy: str
    more: str


ENGLISH = Language(
    page="README.md",
    columns=("network, data", "recipe", "top-1", "to fp32", "ONNX", "latency", "step, AVX2", "step, VNNI"),
    fp32="fp32",
    notes="Step: speed of a training step relative to Paddle's fp32, one thread ({steps}). "
    "Latency: speed of the ONNX file in ONNX Runtime relative to the faster fp32 of ONNX Runtime "
    "and OpenVINO ({latency}). ",
    accuracy="To fp32: difference of top-1 in points. Empty: not measured. ",
    more="[Measured results](docs/numbers.md) has conditions, ranges and commands.",
)
CHINESE = Language(
    page="README.zh.md",
    columns=("网络，数据", "配方", "top-1", "与 fp32 之差", "ONNX", "延迟", "训练步，AVX2", "训练步，VNNI"),
    fp32="fp32",
    notes="训练步：相对于 Paddle fp32 的训练速度，单线程（{steps}）。"
    "延迟：ONNX 文件在 ONNX Runtime 中的速度，相对于 ONNX Runtime 与 OpenVINO 中较快的 fp32（{latency}）。",
    accuracy="与 fp32 之差为 top-1 的百分点；空格表示没有测量。",
    more="条件、范围和命令见[测量结果](docs/numbers.md)。",
)


def make_table(language: Language) -> str:
    """The table and the lines below it."""
    data, accuracy = yaml.safe_load(DATA.read_text("utf-8")), accuracy_rows()
    head = [f"| {' | '.join(language.columns)} |", "|---|---" + "|--:" * (len(language.columns) - 2) + "|"]
    rows = [
        f"| {' | '.join(_cells(row, data['baselines'], accuracy, language))} |" for row in data["results"]
    ]
    notes = language.notes + language.accuracy + language.more
    notes = notes.format(steps=data["steps"], latency=data["latency"])
    return "\n".join([*head, *rows, "", notes, ""])


def _cells(
    row: dict[str, Any], baselines: dict[str, float], accuracy: dict[str, Any], language: Language
) -> list[str]:
    top1, size = row.get("top1"), row.get("onnx_bytes")
    fp32 = baselines.get(row.get("baseline"))
    if measured := accuracy.get(row.get("accuracy")):
        top1, fp32 = measured.get("top1"), measured.get("fp32")
    unknown = top1 is None or fp32 is None or row["recipe"] == "fp32"
    difference = None if unknown else top1 - fp32
    return [
        row["network"],
        language.fp32 if row["recipe"] == "fp32" else f"`{row['recipe']}`",
        "" if top1 is None else f"{top1:.2f} %",
        "" if difference is None else f"{difference:+.2f}".replace("-", "−"),
        "" if size is None else f"{size / 1e6:.2f} MB",
        f"{row['latency']:.2f}×" if "latency" in row else "",
        *(f"{step_speed(name, *row['step']):.2f}×" if "step" in row else "" for name in STEP_FILES),
    ]


def accuracy_rows() -> dict[str, Any]:
    """The rows of accuracy.yaml by name."""
    return yaml.safe_load(ACCURACY.read_text("utf-8"))["rows"]


def make_accuracy_table() -> str:
    """All rows of accuracy.yaml that have a figure."""
    lines = [
        "| row | schedule | seeds | fp32 | top-1 | to fp32 | processor time | commit, date |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    for name, row in accuracy_rows().items():
        if "top1" not in row:
            continue
        seconds = row.get("processor_seconds")
        seeds = ", ".join(f"{seed}: {top1:.2f}" for seed, top1 in row.get("seeds", {}).items())
        fp32 = row.get("fp32")
        cells = [
            f"`{name}`",
            _schedule(row),
            seeds or str(row["seed"]),
            "not measured" if fp32 is None else f"{fp32:.2f} %",
            f"{row['top1']:.2f} %",
            "" if fp32 is None else f"{row['top1'] - fp32:+.2f}".replace("-", "−"),
            "" if seconds is None else f"{seconds} s",
            f"{row['commit']}, {row['date']}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _schedule(row: dict[str, Any]) -> str:
    """What a row quantizes with, and for how long."""
    recipe = f"`{row['recipe']}`" if "recipe" in row else "fp32"
    if "bits" in row:
        recipe += f" in {row['bits']} bits"
    if "epochs" in row:
        options = [f"`{option.removeprefix('Optimizer.')}`" for option in row["options"]]
        options += [f"`{key}: {value}`" for key, value in row.get("distillation", {}).items()]
        parts = [recipe, f"{row['epochs']} epochs", *options]
    else:
        changed = ", ".join(f"`{key}: {value}`" for key, value in row.get("settings", {}).items())
        parts = [recipe, f"{row['images']} images", changed]
    return ", ".join(part for part in parts if part)


_TO_PYTORCH = ("W8A8G8", "W4A4G4 fast")  # rows that are compared with PyTorch, too
_TO_FP32 = ("QAT W8A8", "lowbit bf16")  # rows whose time is compared with lowbit's fp32


def step_figures(name: str) -> list[dict[str, Any]]:
    """What `lowbit bench --output` wrote to a file of benchmarks/steps/."""
    return json.loads((STEPS / f"{name}.json").read_text("utf-8"))


def make_steps_table(name: str) -> str:
    """Speeds relative to Paddle's fp32, a column for each network; below them those relative to others."""
    figures = step_figures(name)
    titles = [figure["title"].removeprefix("A training step: ") for figure in figures]
    found = [{row["side"]: row for row in figure["rows"]} for figure in figures]
    sides = dict.fromkeys(side for rows in found for side in rows)  # in their order
    lines = [f"| {' | '.join(['', *titles])} |", "|---" + "|--:" * len(figures) + "|"]
    for side in sides:
        cells = [_range(rows[side]) if side in rows else "" for rows in found]
        lines.append(f"| {side} | {' | '.join(cells)} |")
    for side in _TO_PYTORCH:
        cells = [_times(_torch_seconds(rows), rows.get(side)) for rows in found]
        if any(cells):
            lines.append(f"| {side}, relative to PyTorch's fastest fp32 | {' | '.join(cells)} |")
    for side in _TO_FP32:
        cells = [_times(rows.get(side, {}).get("seconds"), rows.get("lowbit fp32")) for rows in found]
        if any(cells):
            lines.append(f"| time of {side} / lowbit fp32 | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _range(row: dict[str, Any]) -> str:
    return f"{row['faster']:.2f} ({row['least']:.2f} to {row['most']:.2f})"


def _times(seconds: float | None, row: dict[str, Any] | None) -> str:
    return "" if seconds is None or row is None else f"{seconds / row['seconds']:.2f}"


def _torch_seconds(rows: dict[str, Any]) -> float | None:
    return min(
        (row["seconds"] for side, row in rows.items() if side.startswith("PyTorch fp32")), default=None
    )


def step_speed(name: str, network: str, side: str) -> float:
    """The speed of a row relative to Paddle's fp32."""
    (figure,) = (figure for figure in step_figures(name) if figure["case"] == network)
    (row,) = (row for row in figure["rows"] if row["side"] == side)
    return row["faster"]


def make_page(page: str, table: str) -> str:
    """The whole page with the table of today's data."""
    text = (ROOT / page).read_text("utf-8")
    if not _PLACE.search(text):
        raise SystemExit(f"{page} has no <!-- results --> … <!-- /results -->")
    text = _PLACE.sub(lambda _: table, text)
    return _STEPS_PLACE.sub(lambda place: place[1] + make_steps_table(place[2]), text)


def make_pages() -> dict[str, str]:
    """All pages with tables, by their paths."""
    tables = {language.page: make_table(language) for language in (ENGLISH, CHINESE)}
    tables[NUMBERS] = make_accuracy_table()
    return {page: make_page(page, table) for page, table in tables.items()}


if __name__ == "__main__":
    for path, text in make_pages().items():
        (ROOT / path).write_text(text, "utf-8")
        sys.stdout.write(f"{path}\n")
