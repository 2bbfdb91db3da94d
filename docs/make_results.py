"""Writes the results tables of README.md and README.zh.md from benchmarks/results.yaml: `make docs`.

A table stands between the lines `<!-- results -->` and `<!-- /results -->`. A figure that was not measured
stays empty.
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
    """The words of one README."""

    page: str
    columns: tuple[str, ...]
    fp32: str  # what stands in the place of a recipe
    steps: str  # a sentence; {processor}, {threads} and so on come from the data
    accuracy: str
    more: str


ENGLISH = Language(
    page="README.md",
    columns=("network, data", "recipe", "top-1", "to fp32", "ONNX", "latency", "step, AMX", "step, AVX2"),
    fp32="fp32",
    steps="Latency and step: how many times faster than fp32 in the same engine (latency) and than Paddle's "
    "own fp32 step (step; one thread, {processor}, `{command}`, {date}). ",
    accuracy="To fp32: points of top-1. Empty: not measured. ",
    more="Conditions, ranges and commands are in [the numbers](docs/numbers.md). "
    "`lowbit bench` measures steps on your machine.",
)
CHINESE = Language(
    page="README.zh.md",
    columns=("网络，数据", "配方", "top-1", "与 fp32 之差", "ONNX", "延迟", "训练步，AMX", "训练步，AVX2"),
    fp32="fp32",
    steps="延迟与训练步都是倍数：延迟与同一引擎中的 fp32 相比，训练步与 Paddle 自带的 fp32 相比"
    "（单线程，{processor}，`{command}`，{date}）。",
    accuracy="与 fp32 之差以百分点计；空格表示没有测量。",
    more="条件、范围和命令见[测量数据](docs/numbers.md)。在自己的机器上用 `lowbit bench` 测量训练步。",
)


def make_table(language: Language) -> str:
    """The table and the lines below it."""
    data = yaml.safe_load(DATA.read_text("utf-8"))
    head = [f"| {' | '.join(language.columns)} |", "|---|---" + "|--:" * (len(language.columns) - 2) + "|"]
    rows = [f"| {' | '.join(_cells(row, data['baselines'], language))} |" for row in data["results"]]
    notes = (language.steps + language.accuracy + language.more).format(**data["steps"])
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
        f"{row['latency']:g}×" if "latency" in row else "",
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
