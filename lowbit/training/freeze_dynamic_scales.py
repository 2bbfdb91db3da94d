"""What is exported of a model whose input scales are chosen in every call: the same with fixed ones, kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import paddle

from lowbit.accel.convolutions import fast_convolutions
from lowbit.config import validate
from lowbit.data.dataset import SpreadDataset
from lowbit.errors import LowbitError
from lowbit.nn.convert import preparation_of
from lowbit.nn.deployed_form import dynamic_inputs, fix_inputs, fixed_copy
from lowbit.recipe import Recipe
from lowbit.training.checkpoint import SUFFIX, Checkpoint, Progress, save_checkpoint
from lowbit.training.evaluate import comparison_table, evaluate
from lowbit.training.inputs import build_loader, open_section
from lowbit.training.post_training import calibration_config
from lowbit.training.quantization import recipe_values
from lowbit.training.resume import environment_record
from lowbit.training.trained_model import TrainedModel, open_checkpoint

_BATCHES = 50
_COMPARED = 1000  # images: a difference of a point is seen, and it takes a minute at most
_ENDING = "_deployed"


def deployable(
    trained: TrainedModel, *, data_path: Path | None = None, tell: Callable[[str], None] = print
) -> TrainedModel:
    """The model in the form that engines can compute; itself, where its scales are known already.

    Inputs whose scales are chosen in every call get fixed ones, from training images: those of the
    model's config, or of `data_path`. The result is kept as a checkpoint next to the model's own, and used as
    long as that does not change; `tell` hears what was done, and what it costs in accuracy.

    export_model(deployable(open_checkpoint(Path("runs/w4a4g4"))).model, …)
    """
    layers = dynamic_inputs(trained.model)
    if not layers:
        return trained
    kept = trained.source.with_name(trained.source.stem + _ENDING + SUFFIX)
    if data_path is None and kept.is_file() and kept.stat().st_mtime >= trained.source.stat().st_mtime:
        found = open_checkpoint(kept, trust=trained.trust)
        return replace(found, config=trained.config)
    settings = trained.config
    model = fixed_copy(trained.model, steps=_BATCHES)
    recipe = preparation_of(model).recipe
    images = _images(trained, recipe, data_path, len(layers))
    with fast_convolutions(wanted=settings.Global.fast_convolutions):
        batches = fix_inputs(trained.model, model, islice(images, _BATCHES))
        tell(
            f"{len(layers)} layers choose the scales of their inputs in every call, which engines "
            f"cannot do: fixed for deployment, from {batches} batches of training images"
        )
        found = replace(trained, model=model, source=kept)
        _tell_accuracy(trained, found, tell)
    save_checkpoint(kept, _checkpoint(found, recipe_values(recipe)))
    tell(f"  kept as {kept}")
    return found


def _images(
    trained: TrainedModel, recipe: Recipe, data_path: Path | None, layers: int
) -> Iterator[paddle.Tensor]:
    """Batches of training images, prepared as in evaluation: those of a run that calibrates the recipe."""
    values = trained.config.model_dump(mode="json")
    values |= {"Recipe": recipe_values(recipe), "Slim": None, "Distillation": None}
    values["Global"] |= {"pretrained_model": str(trained.source), "reset_classifier": False}
    config = validate(values, {}, str(trained.source))
    try:
        split = calibration_config(config, data_path=data_path).DataLoader.Train
        dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    except LowbitError as error:
        raise LowbitError(
            f"{trained.source}: {layers} layers choose the scales of their inputs in every call, which "
            f"engines cannot do. To fix them, training images are needed ({error}): give some with "
            "lowbit export --data-path IMAGES"
        ) from None
    loader = build_loader(split, dataset, training=True, seed=trained.config.Global.seed)
    return (paddle.to_tensor(batch.images) for batch in loader.epoch(0))


def _tell_accuracy(trained: TrainedModel, found: TrainedModel, tell: Callable[[str], None]) -> None:
    """Both forms on some validation images, where there are any."""
    split = trained.config.DataLoader.Eval
    if split is None:
        tell("  what that costs in accuracy is not known: the config has no DataLoader.Eval section")
        return
    try:
        dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    except LowbitError as error:
        tell(f"  what that costs in accuracy is not known: {error}")
        return
    some = SpreadDataset(dataset, _COMPARED)
    before, after = (
        evaluate(
            each.model,
            build_loader(split, some, training=False),
            loss=trained.config.Loss.Eval[0].cross_entropy,
            topk=trained.config.eval_topk,
        )
        for each in (trained, found)
    )
    tell(f"on {len(some)} validation images:")
    tell(comparison_table(before, after, titles=("as trained", "deployed")))


def _checkpoint(found: TrainedModel, recipe: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        model={name: tensor.numpy() for name, tensor in found.model.state_dict().items()},
        optimizer={},
        progress=Progress(),
        scaler={},
        config=found.config.model_dump(mode="json"),
        model_name=found.config.Arch.name,
        classes=found.classes,
        environment=environment_record(),
        order={},
        recipe=recipe,
    )
