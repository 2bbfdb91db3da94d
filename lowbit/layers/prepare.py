"""prepare(): a model's layers become quantized ones, and its batch norms what the recipe says of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.layers.batch_norm import check_can_freeze, follow, freeze_after
from lowbit.layers.bias_correction import give_bias
from lowbit.layers.foldable import BATCH_NORM, Folded, find_foldable
from lowbit.layers.folded import Pair, fold_in_training
from lowbit.layers.quantized import has_quantized_layers, quantize_layer
from lowbit.recipe import LayerPlan, Recipe

_ATTRIBUTE = "_lowbit_preparation"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What `prepare` did with each layer; as text, a few lines for people.

    `batch_norms` are those that are folded in training, and with `fold: training` the others, too.
    """

    recipe: Recipe
    layers: tuple[LayerPlan, ...]
    batch_norms: Folded = field(default_factory=Folded)

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
        folded, apart = len(self.batch_norms.pairs), self.batch_norms.left_alone
        if folded or apart:
            lines.append(f"{folded} of {folded + len(apart)} batch norms are folded in training")
        lines += [f"  {name} stays by itself: {why}" for name, why in apart.items()]
        steps = self.recipe.batch_norm.freeze_after
        if steps is not None:
            lines.append(f"the statistics of batch norms stand still after {steps} training steps")
        return "\n".join(lines)


def prepare(model: nn.Layer, recipe: Recipe, *inputs: Tensor) -> nn.Layer:
    """The model, in place, with every layer that the recipe quantizes turned into a quantized one.

    Weights keep their names, so an fp32 checkpoint can be loaded before or after. Make the optimizer after:
    LSQ's steps and PACT's bounds are new parameters. With `calibration` in the recipe, call `calibrate`
    next. What was done is told by `preparation_of(model)`.

    `inputs` are needed with `batch_norm: {fold: training}` alone: any that the model takes, on which it is
    run to find the layer that each batch norm follows.

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
    if has_quantized_layers(model):
        raise LowbitError(
            f"{type(model).__name__} is quantized already: start again from the unquantized model"
        )
    if recipe.calibration.correct_bias and recipe.batch_norm.fold == "training":
        raise LowbitError(
            "calibration.correct_bias goes with batch_norm.fold: export, where a layer's bias stands before "
            "its batch norm: leave out one of the two"
        )
    layers = tuple(recipe.assign(model))
    quantized = [assigned for assigned in layers if not assigned.plan.is_full]
    if not quantized:
        nothing = Preparation(recipe=recipe, layers=layers)
        raise LowbitError(f"the recipe quantizes nothing in {type(model).__name__}:\n{nothing}")
    if recipe.batch_norm.fold == "training":  # all of them, before anything is changed
        for assigned in quantized:
            _check_can_fold(assigned)
    by_name = dict(model.named_sublayers(remove_duplicate=False))
    batch_norms = Folded()
    if recipe.batch_norm.fold == "training":
        batch_norms = _find_pairs(model, inputs, {id(by_name[found.layer.name]) for found in quantized})
    freezing = {} if recipe.batch_norm.freeze_after is None else _batch_norms(model)
    for name, norm in freezing.items():
        check_can_freeze(norm, name)
    for assigned in quantized:
        name = assigned.layer.name
        number = assigned.layer.index
        quantize_layer(by_name[name], assigned.plan, name=name, number=number, pact=recipe.pact)
        if recipe.calibration.correct_bias:
            give_bias(by_name[name])
    for name, norm in freezing.items():
        freeze_after(norm, recipe.batch_norm.freeze_after, name=name)
    for name, norm_name in batch_norms.pairs:
        pair = Pair(by_name[name], by_name[norm_name])
        fold_in_training(pair.layer, pair)
        follow(pair.norm, pair)
    note_preparation(model, Preparation(recipe=recipe, layers=layers, batch_norms=batch_norms))
    return model


def note_preparation(model: nn.Layer, preparation: Preparation) -> None:
    """What `preparation_of` says of the model from now on."""
    setattr(model, _ATTRIBUTE, preparation)


def preparation_of(model: nn.Layer) -> Preparation:
    """What `prepare` did with the model."""
    found = getattr(model, _ATTRIBUTE, None)
    if found is None:
        raise LowbitError(f"{type(model).__name__} has not been prepared: call prepare(model, recipe) first")
    return found


def _check_can_fold(assigned: LayerPlan) -> None:
    if not assigned.plan.is_straight_through:
        raise LowbitError(
            f'batch_norm.fold: training is for QAT, but the plan of layer "{assigned.layer.name}" quantizes '
            "gradients (low-precision training): leave it out, and batch norms are folded at export"
        )


def _find_pairs(model: nn.Layer, inputs: tuple[Tensor, ...], quantized: set[int]) -> Folded:
    """The batch norms that can be folded into a layer that the recipe quantizes."""
    if not _batch_norms(model):
        return Folded()
    if not inputs:
        raise LowbitError(
            "batch_norm.fold: training needs to run the model, to find the layer that each batch norm "
            "follows: give inputs that it takes, prepare(model, recipe, images)"
        )
    found, layers = find_foldable(model, *inputs), dict(model.named_sublayers())
    pairs = [pair for pair in found.pairs if id(layers[pair[0]]) in quantized]
    others = {norm: f"{name} is not quantized" for name, norm in found.pairs if (name, norm) not in pairs}
    return Folded(pairs, found.left_alone | others)


def _batch_norms(model: nn.Layer) -> dict[str, nn.Layer]:
    found = model.named_sublayers(include_self=True)
    return {name: layer for name, layer in found if isinstance(layer, BATCH_NORM | nn.BatchNorm)}
