"""Exports of small networks."""

from __future__ import annotations

from pathlib import Path

from paddle import nn

from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage, ToCHWImage
from lowbit.deploy import ExportedModel, export_model

CLASSES = ["ant", "bee", "cat", "dog"]
SHAPE = (3, 16, 16)
OPS = [ResizeImage(resize_short=20), CropImage(size=16), NormalizeImage(), ToCHWImage()]


def export_tiny(model: nn.Layer, directory: Path, **changes) -> ExportedModel:
    options = {"model_name": "tiny", "image_shape": SHAPE, "transform_ops": OPS, "classes": CLASSES}
    return export_model(model, directory, **(options | changes))
