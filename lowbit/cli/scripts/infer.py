"""`deploy/inference_python/infer.py`: an exported model's answer for images, with the ecosystem's options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.scripts.yes_no import yes_no_option
from lowbit.errors import LowbitError


def infer(
    img_path: Annotated[str, typer.Option(help="An image, or a folder of images.")],
    model_dir: Annotated[Path, typer.Option(help="The folder of an exported model.")] = Path("."),
    use_gpu: Annotated[str, yes_no_option(help="Run on a GPU.")] = "False",
    max_batch_size: Annotated[int, typer.Option(min=1, help="The largest --batch-size allowed.")] = 16,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 1,
    resize_size: Annotated[
        int | None, typer.Option(min=1, help="Short side before the crop; left out: as exported, else 256.")
    ] = None,
    crop_size: Annotated[
        int | None, typer.Option(min=1, help="Side of the crop; left out: as exported, else 224.")
    ] = None,
    benchmark: Annotated[str, yes_no_option(help="Also print the AutoLog report.")] = "False",
    warmup: Annotated[int, typer.Option(min=0, help="Runs before the measured ones.")] = 0,
) -> None:
    """Classify images with an exported model.

    **Example**: `python deploy/inference_python/infer.py --model-dir output/infer --img-path images/demo.jpg`
    """
    from lowbit.cli.classify import classify
    from lowbit.machine import resolve_device

    if batch_size > max_batch_size:
        raise LowbitError(f"--batch-size {batch_size} is above --max-batch-size {max_batch_size}")
    classify(
        model_dir,
        [img_path],
        batch_size=batch_size,
        device=resolve_device("gpu" if use_gpu else "cpu").name,
        resize_size=resize_size,
        crop_size=crop_size,
        benchmark=benchmark,
        warmup=warmup,
    )
