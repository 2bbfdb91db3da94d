"""`lowbit demo`: the command, and the table it ends with."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

if TYPE_CHECKING:
    from lowbit.demo.steps import DemoTraining

_ENGINES = {"paddle": "Paddle", "onnxruntime": "ONNX RT", "openvino": "OpenVINO", "lowbit": "lowbit"}
# The table and these lines fit a terminal of 80 columns.
NOTES = (
    "deployed: in the least accurate engine",
    "agrees:   images to which the engine gives the same class as the exported model",
    "          (Paddle, quantized: of a sample of the images)",
    "MB:       of the ONNX file, and how many times smaller than in fp32",
    "step:     speed of a training step on one core, in turns; Paddle's own fp32 is 1",
)


def demo(
    output_dir: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/demo"),
) -> None:
    """Train ResNet20 on handwritten digits in fp32, W8A8, W4A4 and W4A4G4; deploy, verify, compare.

    Two trainings run at once where there are two cores. Each is exported and compared in Paddle Inference,
    ONNX Runtime and OpenVINO. The last lines are a table; a report of all runs is opened in a browser, or
    named where there is none. A few minutes.

    **Example**: `lowbit demo --output-dir runs/demo`; a second run takes up what the first one left there.
    """
    from lowbit.demo.steps import make_folder, make_stages, report_file, run_stages
    from lowbit.machine import cpu_info

    start = time.monotonic()
    print("ResNet20 learns handwritten digits, in 32 bits and in fewer; every step is a command.", flush=True)
    make_folder(output_dir)
    run_stages(make_stages(output_dir), at_once=min(2, cpu_info().cores))
    _show_results(output_dir)
    print(f"Took {time.monotonic() - start:.0f} s.")
    if _has_display():
        webbrowser.open(report_file(output_dir).resolve().as_uri())


def _show_results(folder: Path) -> None:
    """The table, where the report is, and what to type next."""
    from rich.console import Console

    from lowbit.demo.steps import TRAININGS, report_file

    console = Console(highlight=False)
    console.print("\n[bold]Results[/bold] on the 360 validation images\n")
    console.print(make_table(folder, TRAININGS))
    console.print("".join(f"\n[dim]{note}[/dim]" for note in NOTES))
    print(f"\nReport      {report_file(folder)}")
    images = _write_digits(folder / "images")
    print("Go on with ", shlex.join(["lowbit", "infer", str(folder / "w4a4" / "export"), str(images)]))
    print("           ", shlex.join(["lowbit", "analyze", str(folder / "w4a4")]))


def _has_display() -> bool:
    """Whether somebody sits before a screen: a terminal, on a desktop."""
    return sys.stdout.isatty() and bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _write_digits(folder: Path) -> Path:
    """A few validation images as files, for the reader's next command."""
    import cv2

    from lowbit.data import open_digits

    digits = open_digits("val")
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(8):
        path = folder / f"{index}_is_{digits.classes[digits.label(index)]}.png"
        cv2.imwrite(str(path), digits.image(index)[:, :, ::-1])  # OpenCV writes blue first
    return folder


def make_table(folder: Path, trainings: Sequence[DemoTraining]) -> Table:
    """What the steps have left in the folder, side by side.

    Console().print(make_table(Path("runs/demo"), TRAININGS))
    """
    from lowbit.demo.steps import bench_file
    from lowbit.report import open_run

    runs = [open_run(folder / training.name) for training in trainings]
    verified = {engine["engine"] for engine in (runs[0].verify or {})["engines"]}
    engines = [key for key in _ENGINES if key in verified]  # OpenVINO may not be installed
    table = _empty_table(
        ["top-1\ntrained", "top-1\ndeployed"],
        [f"agrees\n{_ENGINES[key]}" for key in engines],
        ["ONNX\nMB", "times\nsmaller", "step\nspeed"],
    )
    (measured,) = json.loads(bench_file(folder).read_text("utf-8"))
    faster = {row["side"]: row["faster"] for row in measured["rows"]}
    for training, run in zip(trainings, runs, strict=True):
        trained = max(top1 for _, top1 in run.points("eval", "top1"))
        table.add_row(
            training.title,
            f"{trained:.1%}",
            *_verified(run.verify or {}, engines),
            f"{faster[training.side]:.2f}x",
        )
    return table


def _empty_table(*groups: list[str]) -> Table:
    """The titles of its columns; groups of columns are a space further apart than columns of a group."""
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column("\ntraining", no_wrap=True)
    for group in groups:
        for place, title in enumerate(group):
            widest = max(len(line) for line in title.splitlines())
            table.add_column(title, justify="right", no_wrap=True, min_width=widest + (place == 0))
    return table


def _verified(found: dict[str, Any], keys: Sequence[str]) -> list[str]:
    engines = {engine["engine"]: engine for engine in found["engines"]}
    (onnx,) = (size for size in found["sizes"] if size["format"] == "ONNX")
    ratio = onnx["ratio"]
    # Paddle Inference may have seen a sample only, whose accuracy is that of other images.
    of_all = [engine["top1"] for engine in engines.values() if engine["images"] == found["images"]]
    return [
        f"{min(of_all):.1%}",
        *(f"{engines[key]['agreement']:.1%}" for key in keys),
        f"{onnx['exported'] / 1e6:.2f}",
        "" if ratio is None else f"{ratio:.1f}x",
    ]
