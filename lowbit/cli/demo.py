"""`lowbit demo`: four trainings on embedded data, from fp32 to 4 bits, each proven the same when deployed."""

from __future__ import annotations

import os
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
    from rich.console import Console

    from lowbit.cli.demo_run import run_stages
    from lowbit.cli.demo_steps import TRAININGS, make_stages, report_file, write_settings
    from lowbit.cli.demo_table import NOTES, make_table
    from lowbit.machine import cpu_info

    start = time.monotonic()
    console = Console(highlight=False, soft_wrap=True)
    console.print("ResNet20 learns handwritten digits, in 32 bits and in fewer; every step is a command.")
    write_settings(output_dir)
    run_stages(make_stages(output_dir), at_once=min(2, cpu_info().cores))
    console.print("\n[bold]What came of it[/bold], on the 360 validation images")
    # As wide as it must be where nobody watches.
    Console(width=None if sys.stdout.isatty() else 120).print(make_table(output_dir, TRAININGS))
    for note in NOTES:
        console.print(f"[dim]{note}[/dim]")
    page = report_file(output_dir)
    console.print(f"\nReport      {page}", markup=False)
    images = _write_digits(output_dir / "images")
    console.print(f"Go on with  lowbit infer {output_dir / 'w4a4' / 'export'} {images}", markup=False)
    console.print(f"            lowbit analyze {output_dir / 'w4a4'}", markup=False)
    console.print(f"Took {time.monotonic() - start:.0f} s.")
    if _has_display():
        webbrowser.open(page.resolve().as_uri())


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
