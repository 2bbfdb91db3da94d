"""`lowbit demo`: four trainings on embedded data, from fp32 to 4 bits, each proven the same when deployed."""

from __future__ import annotations

import os
import shlex
import sys
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def demo(
    output_dir: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/demo"),
) -> None:
    """Train ResNet20 on handwritten digits in fp32, W8A8, W4A4 and W4A4G4; deploy, verify, compare.

    Two trainings run at once where there are two cores. Each is exported and compared in Paddle Inference,
    ONNX Runtime and OpenVINO. The last lines are a table; a report of all runs is opened in a browser, or
    named where there is none. A few minutes.

    **Example**: `lowbit demo --output-dir runs/demo`; a second run takes up what the first one left there.
    """
    from lowbit.cli.demo_run import run_stages
    from lowbit.cli.demo_steps import make_folder, make_stages, report_file
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

    from lowbit.cli.demo_steps import TRAININGS, report_file
    from lowbit.cli.demo_table import NOTES, make_table

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
