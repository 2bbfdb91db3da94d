"""`deploy/onnx_python/infer.py`: an ONNX model's answer for images, with the ecosystem's options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def onnx_infer(
    onnx_file: Annotated[
        Path, typer.Option("--onnx_file", help="The ONNX file, or the folder that holds inference.onnx.")
    ] = Path("model.onnx"),
    img_path: Annotated[
        str, typer.Option("--img_path", help="An image, or a folder of images.")
    ] = "image.jpg",
    crop_size: Annotated[
        int | None,
        typer.Option(
            "--crop_size",
            min=1,
            help="Short side before the crop, as the original means it; left out: as exported, else 256.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, help="Images at a time.")] = 1,
) -> None:
    """Classify images with an ONNX model in ONNX Runtime.

    **Example**: `python deploy/onnx_python/infer.py --onnx_file output/inference.onnx --img_path demo.jpg`
    """
    from lowbit.cli.classify import classify

    path = onnx_file / "inference.onnx" if (onnx_file / "inference.onnx").is_file() else onnx_file
    print("ONNXRuntime predict: ")
    classify(path, [img_path], batch_size=batch_size, resize_size=crop_size)
