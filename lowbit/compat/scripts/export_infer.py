"""`tools/export_model.py` and both `infer.py`: exported models, with the options of Paddle's repositories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lowbit.cli.options import TrustCode
from lowbit.config import validate
from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage
from lowbit.errors import LowbitError

_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def yes_no_option(*names: str, help: str) -> typer.models.OptionInfo:
    """An option whose text the callback makes a bool of; left out without a default, it stays None."""
    return typer.Option(*names, callback=_yes_no, metavar="True|False", help=help)


def _yes_no(text: str | None) -> bool | None:
    if text is None:
        return None
    if text.lower() not in _WORDS:
        raise typer.BadParameter(f"expected True or False, got {text!r}")
    return _WORDS[text.lower()]


_IMAGENET_SIDE = 224


def export_model(
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's name, or package.module:Class; default: as trained, else mobilenet_v3_small."
        ),
    ] = None,
    img_size: Annotated[
        int | None,
        typer.Option(min=1, help="Side of the images that the model sees; default: as trained, else 224."),
    ] = None,
    save_inference_dir: Annotated[
        Path, typer.Option(help="Where to write inference.json and its like.")
    ] = Path("."),
    pretrained: Annotated[Path | None, typer.Option(help="The weights: .pdparams or .safetensors.")] = None,
    num_classes: Annotated[
        int | None, typer.Option(min=1, help="Left out: as many as the weights have (ImageNet: 1000).")
    ] = None,
    format_: Annotated[
        Literal["paddle", "onnx"], typer.Option("--format", help="For Paddle Inference, or an ONNX file.")
    ] = "paddle",
    trust_code: TrustCode = False,
) -> None:
    """Export a model for Paddle Inference, or as an ONNX file.

    **Example**: `python tools/export_model.py --pretrained output/latest.pdparams --save-inference-dir infer`
    """
    from lowbit.api.deploy import export_classifier
    from lowbit.api.runs import to_export
    from lowbit.cli.options import show
    from lowbit.training.checkpoint import find_checkpoint, read_checkpoint
    from lowbit.training.freeze_dynamic_scales import deployable
    from lowbit.training.trained_model import config_of, open_weights

    if pretrained is None:
        raise LowbitError(
            "give the weights with --pretrained: a model with random weights is of no use to anybody"
        )
    checkpoint = find_checkpoint(pretrained)  # what training left next to the weights
    if model is None:
        model = "mobilenet_v3_small"
        if checkpoint is not None:
            model = config_of(read_checkpoint(checkpoint), checkpoint, trust=trust_code).Arch.name
    side = img_size or _IMAGENET_SIDE
    resize_and_crop = [ResizeImage(resize_short=side * 256 // 224), CropImage(size=side)]
    values = {
        "Arch": {"name": model, "class_num": num_classes},
        "DataLoader": {},
        "Infer": {"transforms": [*resize_and_crop, NormalizeImage()]},
    }
    trained = open_weights(validate(values, {}, "export_model.py"), pretrained)
    if format_ == "onnx":  # which can only hold scales that are known; a Paddle program computes as trained
        trained = deployable(trained)
    ops, shape = trained.preprocessing, (3, side, side)
    if img_size is not None:
        ops = [*resize_and_crop, *(op for op in ops if isinstance(op, NormalizeImage))]
    elif checkpoint is not None:
        shape = validate(read_checkpoint(checkpoint).config, {}, str(checkpoint)).Global.image_shape
    files = to_export(trained, image_shape=shape, transform_ops=ops)
    show(export_classifier(files, save_inference_dir, formats=format_))


def infer(
    img_path: Annotated[
        str, typer.Option("--img-path", "--img_path", help="An image, or a folder of images.")
    ],
    model_dir: Annotated[
        Path, typer.Option("--model-dir", "--model_dir", help="The folder of an exported model.")
    ] = Path("."),
    use_gpu: Annotated[str, yes_no_option("--use-gpu", "--use_gpu", help="Run on a GPU.")] = "False",
    max_batch_size: Annotated[
        int,
        typer.Option("--max-batch-size", "--max_batch_size", min=1, help="The largest --batch-size allowed."),
    ] = 16,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "--batch_size", min=1, help="Images at a time.")
    ] = 1,
    resize_size: Annotated[
        int | None,
        typer.Option(
            "--resize-size",
            "--resize_size",
            min=1,
            help="Short side before the crop; default: as exported, else 256.",
        ),
    ] = None,
    crop_size: Annotated[
        int | None,
        typer.Option(
            "--crop-size", "--crop_size", min=1, help="Side of the crop; default: as exported, else 224."
        ),
    ] = None,
    benchmark: Annotated[str, yes_no_option(help="Also print the AutoLog report.")] = "False",
    warmup: Annotated[int, typer.Option(min=0, help="Runs before the measured ones.")] = 0,
) -> None:
    """Classify images with an exported model.

    **Example**: `python deploy/inference_python/infer.py --model-dir output/infer --img-path images/demo.jpg`
    """
    from lowbit.api.evaluation import infer as classify

    if batch_size > max_batch_size:
        raise LowbitError(f"--batch-size {batch_size} is above --max-batch-size {max_batch_size}")
    found = classify(
        model_dir,
        [img_path],
        batch_size=batch_size,
        engine=None if str(model_dir).endswith(".onnx") else "paddle",  # as the original
        device="gpu" if use_gpu else "cpu",
        resize_size=resize_size,
        crop_size=crop_size,
        benchmark=bool(benchmark),  # a bool by its option's callback
        warmup=warmup,
    )
    print(found.to_text(None))


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
            help="Short side before the crop, as the original means it; default: as exported, else 256.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, help="Images at a time.")] = 1,
) -> None:
    """Classify images with an ONNX model in ONNX Runtime.

    **Example**: `python deploy/onnx_python/infer.py --onnx_file output/inference.onnx --img_path demo.jpg`
    """
    from lowbit.api.evaluation import infer as classify

    path = onnx_file / "inference.onnx" if (onnx_file / "inference.onnx").is_file() else onnx_file
    print("ONNXRuntime predict: ")
    print(classify(path, [img_path], batch_size=batch_size, resize_size=crop_size).to_text(None))
