"""Writes the results tables of README.md and README.zh.md from benchmarks/results.yaml: `make docs`.

A table is between the lines `<!-- results -->` and `<!-- /results -->`. Figures that were not measured are
empty.
"""

# ruff: noqa: RUF001 (Chinese punctuation, minus and times signs)

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks/results.yaml"
_PLACE = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.DOTALL)


@dataclass(frozen=True)
class Language:
    """The texts of one README."""

    page: str
    columns: tuple[str, ...]
    fp32: str  # shown instead of a recipe
    steps: str  # a sentence; {processor}, {threads} and so on come from the data
    accuracy: str
    more: str


ENGLISH = Language(
    page="README.md",
    columns=("network, data", "recipe", "top-1", "to fp32", "ONNX", "latency", "step, AMX", "step, AVX2"),
    fp32="fp32",
    steps="Step: speed of a training step relative to Paddle's fp32 ({processor}, `{command}`, one thread, "
    "{date}). Latency: speed of the ONNX file in ONNX Runtime relative to the faster fp32 of ONNX Runtime "
    "and OpenVINO ({latency}). ",
    accuracy="To fp32: difference of top-1 in points. Empty: not measured. ",
    more="[Measured results](docs/numbers.md) has conditions, ranges and commands.",
)
CHINESE = Language(
    page="README.zh.md",
    columns=("网络，数据", "配方", "top-1", "与 fp32 之差", "ONNX", "延迟", "训练步，AMX", "训练步，AVX2"),
    fp32="fp32",
    steps="训练步：相对于 Paddle fp32 的训练速度（{processor}，`{command}`，单线程，{date}）。"
    "延迟：ONNX 文件在 ONNX Runtime 中的速度，相对于 ONNX Runtime 与 OpenVINO 中较快的 fp32（{latency}）。",
    accuracy="与 fp32 之差为 top-1 的百分点；空格表示没有测量。",
    more="条件、范围和命令见[测量结果](docs/numbers.md)。",
)


def make_table(language: Language) -> str:
    """The table and the lines below it."""
    data = yaml.safe_load(DATA.read_text("utf-8"))
    head = [f"| {' | '.join(language.columns)} |", "|---|---" + "|--:" * (len(language.columns) - 2) + "|"]
    rows = [f"| {' | '.join(_cells(row, data['baselines'], language))} |" for row in data["results"]]
    notes = language.steps + language.accuracy + language.more
    notes = notes.format(**data["steps"], latency=data["latency"])
    return "\n".join([*head, *rows, "", notes, ""])


def _cells(row: dict[str, Any], baselines: dict[str, float], language: Language) -> list[str]:
    top1, size = row.get("top1"), row.get("onnx_bytes")
    difference = None if top1 is None or row["recipe"] == "fp32" else top1 - baselines[row["baseline"]]
    return [
        row["network"],
        language.fp32 if row["recipe"] == "fp32" else f"`{row['recipe']}`",
        "" if top1 is None else f"{top1:.2f} %",
        "" if difference is None else f"{difference:+.2f}".replace("-", "−"),
        "" if size is None else f"{size / 1e6:.2f} MB",
        f"{row['latency']:.2f}×" if "latency" in row else "",
        *(f"{row[key]:.2f}×" if key in row else "" for key in ("step_amx", "step_avx2")),
    ]


def make_page(language: Language) -> str:
    """The whole README with the table of today's data."""
    text = (ROOT / language.page).read_text("utf-8")
    if not _PLACE.search(text):
        raise SystemExit(f"{language.page} has no <!-- results --> … <!-- /results -->")
    return _PLACE.sub(lambda _: make_table(language), text)


if __name__ == "__main__":
    for chosen in (ENGLISH, CHINESE):
        (ROOT / chosen.page).write_text(make_page(chosen), "utf-8")
        sys.stdout.write(f"{chosen.page}\n")
