"""Checkpoints of a tiny network, fp32 and quantized, as training would leave them, and exported models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle

from lowbit.config import validate
from lowbit.deploy import export_model, export_onnx
from lowbit.nn import calibrate, prepare
from lowbit.recipe import make_recipe
from lowbit.training.checkpoint import Checkpoint, Progress, save_checkpoint
from lowbit.training.quantization import recipe_values
from lowbit.training.trained_model import TrainedModel, open_checkpoint
from tests.support.commands import tiny_values
from tests.support.tiny_net import build_tiny

_CLASSES = ["circle", "cross", "square", "triangle"]


def save_tiny(folder: Path, data: Path, *, seed: int = 0, quantized: bool = False) -> Path:
    """`latest.pdparams` and `latest.lowbit` in the folder; the first is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    model, recipe = build_tiny(seed), None
    if quantized:
        recipe = make_recipe({"activation_preprocess_type": "PACT"})
        images = paddle.to_tensor(np.random.default_rng(0).standard_normal((4, 3, 32, 32), np.float32))
        prepare(model, recipe, images)
        calibrate(model, [images])
    model.eval()
    config = validate(tiny_values(data, folder), {}, "tiny")
    checkpoint = Checkpoint(
        model={name: tensor.numpy() for name, tensor in model.state_dict().items()},
        optimizer={},
        progress=Progress(),
        scaler={},
        config=config.model_dump(mode="json"),
        model_name=config.Arch.name,
        classes=_CLASSES,
        environment={},
        order={},
        recipe=recipe_values(recipe),
    )
    save_checkpoint(folder / "latest.lowbit", checkpoint)
    paddle.save(model.state_dict(), str(folder / "latest.pdparams"))
    return folder / "latest.pdparams"


def export_tiny(weights: Path, folder: Path) -> TrainedModel:
    """`inference.*` of a checkpoint, as Paddle's program and as an ONNX file."""
    trained = open_checkpoint(weights.with_suffix(".lowbit"))
    export_model(
        trained.model,
        folder,
        model_name="tiny",
        image_shape=(3, 32, 32),
        transform_ops=trained.preprocessing,
        classes=trained.classes,
    )
    export_onnx(
        trained.model,
        folder / "inference.onnx",
        model_name="tiny",
        image_shape=(3, 32, 32),
        quantized=trained.quantized,
    )
    return trained
