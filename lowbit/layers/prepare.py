"""prepare(): a model's layers become quantized ones, as a recipe says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import paddle
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.layers.quantized import check_plan, is_quantized, quantize_layer
from lowbit.recipe import LayerPlan, Recipe

_ATTRIBUTE = "_lowbit_preparation"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What `prepare` did with each layer; as text, a few lines for people."""

    recipe: Recipe
    layers: tuple[LayerPlan, ...]

    @property
    def quantized(self) -> list[str]:
        """The names of the layers that are quantized now."""
        return [assigned.layer.name for assigned in self.layers if not assigned.plan.is_full]

    @property
    def left_alone(self) -> dict[str, str]:
        """The names of the others, with the reason."""
        return {
            assigned.layer.name: assigned.note or "its plan is full precision"
            for assigned in self.layers
            if assigned.plan.is_full
        }

    def __str__(self) -> str:
        plans = Counter(
            f"input {assigned.plan.forward.input}, weight {assigned.plan.forward.weight}"
            for assigned in self.layers
            if not assigned.plan.is_full
        )
        lines = [f"{len(self.quantized)} of {len(self.layers)} layers are quantized:"]
        lines += [f"  {count} with {plan}" for plan, count in plans.items()]
        lines += [f"  {name} is not: {why}" for name, why in self.left_alone.items()]
        return "\n".join(lines)


def prepare(model: nn.Layer, recipe: Recipe) -> nn.Layer:
    """The model, in place, with every layer that the recipe quantizes turned into a quantized one.

    Weights keep their names, so an fp32 checkpoint can be loaded before or after. Make the optimizer after:
    LSQ's steps and PACT's bounds are new parameters. With `calibration` in the recipe, call `calibrate`
    next. What was done is told by `preparation_of(model)`.

    >>> model = prepare(nn.Sequential(nn.Linear(4, 2)), make_recipe({"weight_bits": 4}))
    >>> print(preparation_of(model))
    1 of 1 layers are quantized:
      1 with input int8-narrow per-tensor moving_average, weight int4-narrow N
    """
    if isinstance(model, paddle.DataParallel):
        raise LowbitError(
            "the model is wrapped in DataParallel, which would not synchronize the new parameters: prepare "
            "it first, then wrap it"
        )
    if any(is_quantized(layer) for layer in model.sublayers(include_self=True)):
        raise LowbitError(
            f"{type(model).__name__} is quantized already: start again from the unquantized model"
        )
    _check_batch_norm(recipe)
    layers = tuple(recipe.assign(model))
    preparation = Preparation(recipe=recipe, layers=layers)
    if not preparation.quantized:
        raise LowbitError(f"the recipe quantizes nothing in {type(model).__name__}:\n{preparation}")
    for assigned in layers:  # all of them, before anything is changed
        check_plan(assigned.plan, assigned.layer.name)
    by_name = dict(model.named_sublayers(remove_duplicate=False))
    for assigned in layers:
        if not assigned.plan.is_full:
            name = assigned.layer.name
            quantize_layer(by_name[name], assigned.plan, name=name, pact=recipe.pact)
    setattr(model, _ATTRIBUTE, preparation)
    return model


def preparation_of(model: nn.Layer) -> Preparation:
    """What `prepare` did with the model."""
    found = getattr(model, _ATTRIBUTE, None)
    if found is None:
        raise LowbitError(f"{type(model).__name__} has not been prepared: call prepare(model, recipe) first")
    return found


def _check_batch_norm(recipe: Recipe) -> None:
    if recipe.batch_norm.fold == "training":
        raise LowbitError(
            "batch_norm.fold: training comes with a later version; to train without batch norm, call "
            "lowbit.layers.fold_batch_norm(model, images) before prepare, with fold: export in the recipe"
        )
    if recipe.batch_norm.freeze_after is not None:
        raise LowbitError("batch_norm.freeze_after comes with a later version: leave it out")
