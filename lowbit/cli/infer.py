"""`lowbit infer`: classes and probabilities of images, from an exported model."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import AsJson, DeviceName, Quiet
from lowbit.errors import LowbitError


def infer(
    model_dir: Annotated[Path, typer.Argument(help="The folder of an exported model.")],
    images: Annotated[list[str], typer.Argument(help="Images, or folders of images.")],
    topk: Annotated[int, typer.Option(min=1, help="How many classes to name for an image.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 1,
    engine: Annotated[
        str | None,
        typer.Option(
            help="`lowbit`, `onnxruntime`, `openvino` (the ONNX file) or `paddle`; left out: `lowbit` for a "
            "folder with a quantized ONNX file, else Paddle Inference; ONNX Runtime for a file."
        ),
    ] = None,
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
    - `lowbit infer runs/digits/export photo.jpg --engine lowbit`
    - `lowbit infer runs/digits/export folder/ --batch-size 8 --benchmark --warmup 3`
    """
    from lowbit.api.evaluation import infer as classify

    if benchmark and as_json:
        raise LowbitError("--benchmark prints a report in its own format: omit --json")
    found = classify(
        model_dir,
        images,
        topk=topk,
        batch_size=batch_size,
        engine=engine,
        device=device,
        onednn=onednn,
        benchmark=benchmark,
        warmup=warmup,
    )
    if as_json:
        print(json.dumps([asdict(one) for one in found.predictions], indent=2, ensure_ascii=False))
    else:
        print((replace(found, notes=()) if quiet else found).to_text(None))
