"""`lowbit infer`: classes and probabilities for images, from an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import AsJson, DeviceName, Quiet


def infer(
    model_dir: Annotated[Path, typer.Argument(help="The folder of an exported model.")],
    images: Annotated[list[str], typer.Argument(help="Images, or folders of images.")],
    topk: Annotated[int, typer.Option(min=1, help="How many classes to name for an image.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 1,
    device: DeviceName = None,
    onednn: Annotated[bool, typer.Option(help="Use oneDNN on a CPU: faster, last digits differ.")] = True,
    benchmark: Annotated[
        bool, typer.Option(help="Also print the AutoLog report of times and memory.")
    ] = False,
    warmup: Annotated[int, typer.Option(min=0, help="Runs before the measured ones.")] = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Classify images with an exported model.

    **Examples**

    - `lowbit infer runs/digits/export photo.jpg --topk 5`
    - `lowbit infer runs/digits/export folder/ --batch-size 8 --benchmark --warmup 3`
    """
    from lowbit.cli.classify import classify
    from lowbit.errors import LowbitError
    from lowbit.machine import resolve_device

    if benchmark and as_json:
        raise LowbitError("--benchmark prints a report in a format of its own: leave out --json")
    classify(
        model_dir,
        images,
        topk=topk,
        batch_size=batch_size,
        device=resolve_device(device).name,
        onednn=onednn,
        benchmark=benchmark,
        warmup=warmup,
        quiet=quiet or as_json,
        as_json=as_json,
    )
