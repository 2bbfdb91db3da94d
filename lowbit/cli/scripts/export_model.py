"""`tools/export_model.py`: weights to an exported model, with the ecosystem's options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lowbit.cli.options import TrustCode
from lowbit.config import validate
from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage
from lowbit.errors import LowbitError

_IMAGENET_SIDE = 224


def export_model(
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's name, or package.module:Class; left out: as trained, else mobilenet_v3_small."
        ),
    ] = None,
    img_size: Annotated[
        int | None,
        typer.Option(min=1, help="Side of the images that the model sees; left out: as trained, else 224."),
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
    from lowbit.cli.opening import to_export
    from lowbit.cli.output import show
    from lowbit.training.checkpoint import find_checkpoint, read_checkpoint
    from lowbit.training.freeze_dynamic_scales import deployable
    from lowbit.training.trained_model import config_of, open_weights

    if pretrained is None:
        raise LowbitError(
            "give the weights with --pretrained: a model with random weights is of no use to anybody"
        )
    checkpoint = find_checkpoint(pretrained)  # what training left beside the weights
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
