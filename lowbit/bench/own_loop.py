"""Your own training loop under `lowbit.accelerate()`, against the steps of `lowbit train`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import paddle
from paddle.nn import functional as F

from lowbit.accel.convolutions import fast_convolutions
from lowbit.accel.norm_ops import fast_norm_ops
from lowbit.accel.optimizer_step import fast_updates
from lowbit.api.accelerate import accelerate
from lowbit.api.quantize import quantize
from lowbit.bench.sides import CLASSES, Case
from lowbit.config import validate
from lowbit.data import Batch
from lowbit.models import build_model
from lowbit.nn.fused_blocks import fuse
from lowbit.recipe import Recipe
from lowbit.training.quantization import recipe_values
from lowbit.training.session import open_session
from lowbit.training.step import TrainingStep

TRAIN, OWN = "lowbit train", "your own loop"
_RATE, _MOMENTUM, _DECAY = 0.001, 0.9, 1e-4


def own_loop_sides(case: Case, recipe: Recipe | None, undo: ExitStack) -> dict[str, Callable[[], None]]:
    """A step of `lowbit train` and one of your own loop, on the same batch; `undo` ends the fast path.

    Both are the model of the case, in fp32 or quantized by the recipe.
    """
    rng = np.random.default_rng(0)
    images = rng.standard_normal((case.batch, 3, case.side, case.side), dtype=np.float32)
    labels = rng.integers(0, CLASSES, case.batch)
    undo.enter_context(accelerate())
    return {
        TRAIN: _train_step(case, recipe, Batch(images, labels, 1.0)),
        OWN: _own_step(case, recipe, images, labels),
    }


def _own_step(
    case: Case, recipe: Recipe | None, images: np.ndarray, labels: np.ndarray
) -> Callable[[], None]:
    """What a user writes."""
    net = build_model(case.model, CLASSES)
    fuse(net)
    if recipe is not None:
        quantize(net, recipe, data=[images] if recipe.calibration.steps else None)
    optimizer = paddle.optimizer.Momentum(_RATE, _MOMENTUM, parameters=net.parameters(), weight_decay=_DECAY)
    net.train()

    def step() -> None:
        logits = net(paddle.to_tensor(images))
        loss = F.cross_entropy(logits, paddle.to_tensor(labels))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        float(loss)

    return step


def _train_step(case: Case, recipe: Recipe | None, batch: Batch) -> Callable[[], None]:
    session = open_session(validate(_config(case, recipe), {}, "bench"))
    if recipe is not None and recipe.calibration.steps:
        from lowbit.nn import calibrate

        calibrate(session.model, [paddle.to_tensor(batch.images)])
    take_step = TrainingStep(session)
    session.network.train()

    def step() -> None:
        with fast_convolutions(), fast_norm_ops(), fast_updates():
            take_step(batch, _RATE)
        session.progress.step += 1

    return step


def _config(case: Case, recipe: Recipe | None) -> dict[str, Any]:
    """The least that a run needs; its own images, the digits, are not used."""
    normalize = {"NormalizeImage": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    ops = [{"ResizeImage": {"size": case.side}}, normalize]
    return {
        "Global": {"image_shape": [3, case.side, case.side], "device": "cpu", "eval_during_train": False},
        "Arch": {"name": case.model, "class_num": CLASSES},
        "Loss": {"Train": [{"CELoss": {}}]},
        "Optimizer": {
            "name": "Momentum",
            "momentum": _MOMENTUM,
            "lr": {"name": "Constant", "learning_rate": _RATE},
            "regularizer": {"name": "L2", "coeff": _DECAY},
        },
        "DataLoader": {
            "Train": {
                "dataset": {"name": "Digits", "split": "train", "transform_ops": ops},
                "sampler": {"batch_size": case.batch},
            }
        },
        "Recipe": recipe_values(recipe),
    }
