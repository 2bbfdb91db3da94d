"""`tools/export_model.py`: weights to an exported model, with the ecosystem's options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowbit.config import validate
from lowbit.errors import LowbitError


def export_model(
    model: Annotated[
        str, typer.Option(help="A model's name, or package.module:Class.")
    ] = "mobilenet_v3_small",
    img_size: Annotated[int, typer.Option(min=1, help="Side of the images that the model sees.")] = 224,
    save_inference_dir: Annotated[
        Path, typer.Option(help="Where to write inference.json and its like.")
    ] = Path("."),
    pretrained: Annotated[Path | None, typer.Option(help="The weights: .pdparams or .safetensors.")] = None,
    num_classes: Annotated[
        int | None, typer.Option(help="Left out: as many as the weights have (ImageNet: 1000).")
    ] = None,
) -> None:
    """Export a model for Paddle Inference.

    **Example**: `python tools/export_model.py --pretrained output/latest.pdparams --save-inference-dir infer`
    """
    from lowbit.deploy import export_model as write_model
    from lowbit.training.trained_model import open_weights

    if pretrained is None:
        raise LowbitError(
            "give the weights with --pretrained: a model with random weights is of no use to anybody"
        )
    ops = [{"ResizeImage": {"resize_short": img_size * 256 // 224}}, {"CropImage": {"size": img_size}}]
    values = {
        "Arch": {"name": model, "class_num": num_classes},
        "DataLoader": {},
        "Infer": {"transforms": [*ops, {"NormalizeImage": {}}]},
    }
    trained = open_weights(validate(values, {}, "export_model.py"), pretrained)
    exported = write_model(
        trained.model,
        save_inference_dir,
        model_name=model,
        image_shape=(3, img_size, img_size),
        transform_ops=trained.preprocessing,
        classes=trained.classes,
    )
    print(f"Exported {pretrained} to {exported.directory} ({exported.size / 1e6:.1f} MB)")
