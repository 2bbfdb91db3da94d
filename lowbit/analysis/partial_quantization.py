"""An fp32 checkpoint quantized as a recipe says, in memory, for analysis."""

from __future__ import annotations

import os
from collections.abc import Iterator

import paddle

from lowbit.config.data import DataSplit
from lowbit.data.dataset import SpreadDataset
from lowbit.errors import LowbitError
from lowbit.nn import calibrate, prepare
from lowbit.nn.calibration import correct_biases
from lowbit.recipe import Recipe, load_recipe
from lowbit.training.inputs import build_loader, open_section
from lowbit.training.quantization import example_images
from lowbit.training.trained_model import TrainedModel

_STEPS = 4  # of calibration, where the recipe has none: signs and ranges must be known to evaluate


def quantize_as(
    trained: TrainedModel, recipe: str | os.PathLike[str] | Recipe, evaluation: DataSplit
) -> None:
    """The model, in place, quantized without training: calibrated on training images if the config names
    any, else on the validation images, prepared as in evaluation."""
    if trained.quantized:
        raise LowbitError(f"{trained.source} is quantized already, by its own recipe: leave out --recipe")
    recipe = load_recipe(recipe)
    prepare(trained.model, recipe, example_images(trained.config.Global.image_shape))
    steps = recipe.calibration.steps or _STEPS

    def batches() -> Iterator[paddle.Tensor]:
        return _batches(trained, evaluation, steps)

    calibrate(trained.model, batches())
    if recipe.calibration.correct_bias:
        correct_biases(trained.model, batches())
    trained.model.eval()


def _batches(trained: TrainedModel, evaluation: DataSplit, steps: int) -> Iterator[paddle.Tensor]:
    split = trained.config.DataLoader.Train or evaluation
    shown = split.dataset.model_copy(update={"transform_ops": evaluation.dataset.transform_ops})
    split = split.model_copy(update={"dataset": shown})
    dataset = open_section(shown, len(trained.classes), classes=trained.classes)
    some = SpreadDataset(dataset, steps * split.sampler.batch_size)
    for batch in build_loader(split, some, training=False).epoch(0):
        yield paddle.to_tensor(batch.images)
