"""The table that `lowbit demo` ends with: a row for each training, from accuracy to size and speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from lowbit.cli.demo_steps import Training, bench_file
from lowbit.report import open_run

_ENGINES = {"paddle": "Paddle", "onnxruntime": "ONNX RT", "openvino": "OpenVINO"}
# The table and these lines fit a terminal of 80 columns.
NOTES = (
    "deployed: in the least accurate engine",
    "agrees:   images to which the engine gives the same class as the exported model",
    "file:     in ONNX, and how many times smaller than in fp32",
    "step:     speed of a training step on one core, in turns; Paddle's own fp32 is 1",
)


def make_table(folder: Path, trainings: Sequence[Training]) -> Table:
    """What the steps have left in the folder, side by side.

    Console().print(make_table(Path("runs/demo"), TRAININGS))
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("\ntraining")
    titles = ["top-1\ntrained", "top-1\ndeployed"]
    runs = [open_run(folder / training.name) for training in trainings]
    verified = {engine["engine"] for engine in runs[0].verify["engines"]}
    engines = [key for key in _ENGINES if key in verified]  # OpenVINO may not be installed
    titles += [f"agrees\n{_ENGINES[key]}" for key in engines]
    for title in (*titles, "ONNX\nfile", "times\nsmaller", "step\nspeed"):
        table.add_column(title, justify="right")
    (measured,) = json.loads(bench_file(folder).read_text("utf-8"))
    faster = {row["side"]: row["faster"] for row in measured["rows"]}
    for training, run in zip(trainings, runs, strict=True):
        trained = max(top1 for _, top1 in run.points("eval", "top1"))
        table.add_row(
            training.title,
            f"{trained:.1%}",
            *_verified(run.verify, engines),
            f"{faster[training.side]:.2f}x",
        )
    return table


def _verified(found: dict[str, Any], keys: Sequence[str]) -> list[str]:
    engines = {engine["engine"]: engine for engine in found["engines"]}
    (onnx,) = (size for size in found["sizes"] if size["format"] == "ONNX")
    ratio = onnx["ratio"]
    return [
        f"{min(engine['top1'] for engine in engines.values()):.1%}",
        *(f"{engines[key]['agreement']:.1%}" for key in keys),
        f"{onnx['exported'] / 1e6:.2f} MB",
        "" if ratio is None else f"{ratio:.1f}x",
    ]
