"""`lowbit infer`: classes and probabilities of images, from an exported model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowbit.cli.options import AsJson, DeviceName, Quiet
from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage, TransformOp

if TYPE_CHECKING:
    from lowbit.deploy import Engine, InferenceYml


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


def classify(
    model: Path,
    images: list[str],
    *,
    topk: int = 1,
    batch_size: int = 1,
    device: str = "cpu",
    onednn: bool = True,
    resize_size: int | None = None,
    crop_size: int | None = None,
    benchmark: bool = False,
    warmup: int = 0,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Prints a line per image, its `topk` classes if more than one, and the benchmark report if asked.

    `model` is the folder of a Paddle model, or an ONNX file, which runs on the CPU.
    """
    from lowbit.deploy import (
        OnnxRuntimeEngine,
        StageTimer,
        benchmark_report,
        find_model_files,
        infer_images,
        read_inference_yml,
        warm_up,
    )

    is_onnx = model.suffix == ".onnx"
    yml = model.with_suffix(".yml") if is_onnx else find_model_files(model).yml
    description = read_inference_yml(yml) if yml and yml.is_file() else None
    if description is None and not quiet:
        print(f"{model} has no inference.yml: images are prepared as for ImageNet")
    ops = _ops(description, resize_size, crop_size)
    engine = OnnxRuntimeEngine(model) if is_onnx else _paddle(model, device, onednn, quiet)
    side = next((op.size for op in reversed(ops) if isinstance(op, CropImage)), 224)
    if warmup:
        shape = engine.image_shape or (3, *((side, side) if isinstance(side, int) else side[::-1]))
        warm_up(engine, batch_size=batch_size, runs=warmup, image_shape=shape)
    timer = StageTimer()
    predictions = infer_images(
        engine,
        images,
        ops,
        batch_size=batch_size,
        topk=topk,
        classes=description.classes if description else None,
        timer=timer,
    )
    if as_json:
        print(json.dumps([asdict(prediction) for prediction in predictions], indent=2, ensure_ascii=False))
        return
    for prediction in predictions:
        print(prediction.line())
        if topk > 1:
            print("\n".join(prediction.ranking()))
    if benchmark:
        name = description.Global.model_name if description else model.stem
        print("\n".join(benchmark_report(timer, engine, model_name=name, batch_size=batch_size)))


def _paddle(folder: Path, device: str, onednn: bool, quiet: bool) -> Engine:
    from lowbit.deploy import PaddleEngine

    engine = PaddleEngine(folder, device=device, onednn=onednn)
    if engine.note and not quiet:
        print(engine.note)
    return engine


def _ops(
    description: InferenceYml | None, resize_size: int | None, crop_size: int | None
) -> list[TransformOp]:
    """As the model was exported, unless sizes were given."""
    if description is not None and resize_size is None and crop_size is None:
        return description.ops
    normalize = next(
        (op for op in description.ops if isinstance(op, NormalizeImage)) if description else iter(()),
        NormalizeImage(),
    )
    exported = description.ops if description else []
    short = next((op.resize_short for op in exported if isinstance(op, ResizeImage)), None)
    crop = next((op.size for op in reversed(exported) if isinstance(op, CropImage)), None)
    return [
        ResizeImage(resize_short=resize_size or short or 256),
        CropImage(size=crop_size or crop or 224),
        normalize,
    ]
