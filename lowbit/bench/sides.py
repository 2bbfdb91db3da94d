"""The candidates of a training step: Paddle and lowbit in fp32, QAT, low precision; PyTorch, if installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.accel import bf16_products
from lowbit.accel.convolutions import fast_convolutions
from lowbit.accel.norm_ops import fast_norm_ops
from lowbit.accel.optimizer_step import fast_updates
from lowbit.models import build_model
from lowbit.nn import calibrate, prepare
from lowbit.nn.convert import set_executor
from lowbit.nn.fused_blocks import fuse
from lowbit.recipe import load_recipe
from lowbit.training.mixed_precision import MixedPrecision

PADDLE = "Paddle fp32"  # what the others are compared with
CLASSES = 10
RECIPES = {
    "QAT W8A8": "qat_w8a8",
    "QAT W4A4": "qat_w4a4",
    "W8A8G8": "qt_w8a8g8",
    "W4A4G4": "qt_w4a4g4",
    "W4A4G4 fast": "qt_w4a4g4_fast",
}


@dataclass(frozen=True)
class Case:
    """A model with its batch; as text, a line for people.

    >>> str(Case("resnet18", 224, 16))
    'resnet18, 224², batch 16'
    """

    model: str
    side: int
    batch: int

    def __str__(self) -> str:
        return f"{self.model}, {self.side}², batch {self.batch}"


CASES = {
    "resnet18": Case("resnet18", 224, 16),
    "resnet20": Case("resnet20", 32, 128),
    "mobilenet_v3_small": Case("mobilenet_v3_small", 224, 16),
    "mobilenet_v3_small-32": Case("mobilenet_v3_small", 32, 128),
}


def step_sides(case: Case, say: Callable[[str], None] = print) -> dict[str, Callable[[], None]]:
    """A function for every side that trains one step of the case's model on one batch.

    `say` gets a line about a side that takes long to prepare, or cannot be measured.
    """
    paddle.seed(0)
    images = paddle.randn([case.batch, 3, case.side, case.side])
    labels = paddle.randint(0, CLASSES, [case.batch])
    sides = {
        PADDLE: _step(build_model(case.model, CLASSES), images, labels, fast=False),
        "lowbit fp32": _step(_fused(case.model), images, labels),
    }
    has_bf16 = bf16_products.why_not() is None
    if has_bf16:
        precision = MixedPrecision("O1", "bf16", "cpu", native=True)
        sides["lowbit bf16"] = _step(_fused(case.model), images, labels, precision=precision)
    for name, recipe in RECIPES.items():
        sides[name] = _step(_prepared(case.model, recipe, images), images, labels)
    if importlib.util.find_spec("torch"):
        from lowbit.bench.torch_side import torch_steps

        sides |= torch_steps(case, CLASSES, bf16=has_bf16, say=say)
    return sides


def _prepared(model: str, recipe_name: str, images: Tensor) -> nn.Layer:
    recipe = load_recipe(recipe_name)
    prepared = prepare(_fused(model), recipe, images)
    set_executor(prepared, "auto")
    if recipe.calibration.steps:
        calibrate(prepared, [images])
    return prepared


def _fused(model: str) -> nn.Layer:
    built = build_model(model, CLASSES)
    fuse(built)
    return built


def _step(
    model: nn.Layer,
    images: Tensor,
    labels: Tensor,
    *,
    fast: bool = True,
    precision: MixedPrecision | None = None,
) -> Callable[[], None]:
    optimizer = paddle.optimizer.Momentum(0.001, 0.9, parameters=model.parameters(), weight_decay=1e-4)
    model.train()  # once, as a training loop does in an epoch

    def step() -> None:
        with fast_convolutions(wanted=fast), fast_norm_ops(wanted=fast):
            with nullcontext() if precision is None else precision.autocast():
                logits = model(images)
            F.cross_entropy(logits, labels).backward()
        with fast_updates(wanted=fast):
            optimizer.step()
        optimizer.clear_grad()

    return step
