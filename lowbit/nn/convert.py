"""Converting a model: `prepare` puts a recipe's plans into its layers, `set_executor` its executor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError, did_you_mean
from lowbit.kernels import why_missing
from lowbit.nn.activation_matmul import QuantizedProducts, quantize_products
from lowbit.nn.batch_norm import check_can_freeze, follow, freeze_after
from lowbit.nn.bn_folding import (
    BATCH_NORM,
    Folded,
    Pair,
    find_foldable,
    fold_at_calibration,
    fold_in_training,
)
from lowbit.nn.calibration import give_bias
from lowbit.nn.edge_quantizers import attach, edge_spec, without_edges
from lowbit.nn.edges import Edges, find_edges
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.inspect import layers_by_name
from lowbit.nn.int_matmul import Executor
from lowbit.nn.oscillation import track_oscillations
from lowbit.nn.qt_autograd import BackwardQuantizers
from lowbit.nn.quant_layers import has_quantized_layers, is_quantized, quantize_layer
from lowbit.nn.reparameterize import reparameterize
from lowbit.nn.scale_schedule import prepare_schedule
from lowbit.recipe import LayerPlan, Recipe

_ATTRIBUTE = "_lowbit_preparation"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What `prepare` did with each layer; as text, a few lines for people.

    `batch_norms` are those that are folded in training or at calibration, and the others with the reason.
    """

    recipe: Recipe
    layers: tuple[LayerPlan, ...]
    batch_norms: Folded = field(default_factory=Folded)
    products: QuantizedProducts = field(default_factory=QuantizedProducts)  # of two activations
    edges: Edges = field(default_factory=Edges)
    merged: tuple[str, ...] = ()  # blocks whose branches were made one convolution

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
        if self.products.names:
            spec = self.recipe.matmul.operand_spec()
            lines.append(f"{len(self.products.names)} products of two activations with operands {spec}")
        lines += [f"  the products of {name} are not: {why}" for name, why in self.products.left_alone]
        lines += self.edges.lines()
        folded, apart = len(self.batch_norms.pairs), self.batch_norms.left_alone
        if folded or apart:
            when = "at calibration" if self.recipe.batch_norm.fold == "calibration" else "in training"
            lines.append(f"{folded} of {folded + len(apart)} batch norms are folded {when}")
        lines += [f"  {name} stays by itself: {why}" for name, why in apart.items()]
        if self.merged:
            lines.append(f"the branches of {len(self.merged)} blocks were merged, as they are deployed")
        steps = self.recipe.batch_norm.freeze_after
        if steps is not None:
            lines.append(f"the statistics of batch norms stand still after {steps} training steps")
        return "\n".join(lines)


def prepare(model: nn.Layer, recipe: Recipe, *inputs: Tensor) -> nn.Layer:
    """Replace, in place, every layer that the recipe quantizes by a quantized one; returns the model.

    Weights keep their names, so an fp32 checkpoint can be loaded before or after. Make the optimizer after:
    LSQ's steps and PACT's bounds are new parameters. With `calibration` in the recipe, call `calibrate`
    next. What was done is told by `preparation_of(model)`.

    `inputs` are needed with `outputs: quantized` and where batch norm is folded before export: any that the
    model takes, for which it is traced to find the tensors between layers, or run to find the layer that each
    batch norm follows.

    Blocks with branches that are deployed as one convolution (RepVGG's) are merged first, unless gradients
    are quantized: load fp32 weights of such a model before.

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
            "calibration.correct_bias goes with batch_norm.fold: calibration or export, where a layer's bias "
            "stands before its batch norm: leave out one of the two"
        )
    merged = () if recipe.quantizes_gradients else tuple(reparameterize(model))
    layers = tuple(recipe.assign(model))
    quantized = [assigned for assigned in layers if not assigned.plan.is_full]
    if not quantized:
        nothing = Preparation(recipe=recipe, layers=layers)
        raise LowbitError(f"the recipe quantizes nothing in {type(model).__name__}:\n{nothing}")
    if recipe.batch_norm.fold != "export":  # all of them, before anything is changed
        for assigned in quantized:
            _check_can_fold(assigned, recipe.batch_norm.fold)
    by_name = dict(model.named_sublayers(remove_duplicate=False))
    edges = Edges()
    if recipe.outputs == "quantized":
        edges = _find_edges(model, inputs, quantized)
    batch_norms = Folded()
    if recipe.batch_norm.fold != "export":
        batch_norms = _find_pairs(model, inputs, {id(by_name[found.layer.name]) for found in quantized})
    freezing = {} if recipe.batch_norm.freeze_after is None else _batch_norms(model)
    for name, norm in freezing.items():
        check_can_freeze(norm, name)
    # First: attention layers are tried before what is inside of them has no scales.
    products = QuantizedProducts() if recipe.matmul is None else quantize_products(model, recipe.matmul)
    for assigned in quantized:
        name = assigned.layer.name
        number = assigned.layer.index
        settings = {"pact": recipe.pact, "lsq": recipe.lsq}
        quantize_layer(by_name[name], assigned.plan, name=name, number=number, **settings)
        if recipe.calibration.correct_bias:
            give_bias(by_name[name])
    if recipe.oscillation is not None:
        track_oscillations(model, recipe.oscillation)
    prepare_schedule(model, recipe)
    for name, norm in freezing.items():
        freeze_after(norm, recipe.batch_norm.freeze_after, name=name)
    for name, norm_name in batch_norms.pairs:
        pair = Pair(by_name[name], by_name[norm_name])
        if recipe.batch_norm.fold == "calibration":
            give_bias(pair.layer)
            fold_at_calibration(pair.layer, pair.norm)
        else:
            fold_in_training(pair.layer, pair)
            follow(pair.norm, pair)
    if recipe.outputs == "quantized":
        plans = {found.layer.name: found.plan for found in quantized}
        attach(model, edges, plans, pact=recipe.pact, lsq=recipe.lsq)
    preparation = Preparation(
        recipe=recipe,
        layers=layers,
        batch_norms=batch_norms,
        edges=edges,
        products=products,
        merged=merged,
    )
    note_preparation(model, preparation)
    return model


def note_preparation(model: nn.Layer, preparation: Preparation) -> None:
    """Set the result of `preparation_of` for the model."""
    setattr(model, _ATTRIBUTE, preparation)


def preparation_of(model: nn.Layer) -> Preparation:
    """What `prepare` did with the model."""
    found = getattr(model, _ATTRIBUTE, None)
    if found is None:
        raise LowbitError(f"{type(model).__name__} is not quantized: call lowbit.quantize(net, recipe) first")
    return found


def _check_can_fold(assigned: LayerPlan, when: str) -> None:
    if not assigned.plan.is_straight_through:
        raise LowbitError(
            f"batch_norm.fold: {when} is for QAT and post-training quantization, but the plan of layer "
            f'"{assigned.layer.name}" quantizes gradients (low-precision training): leave it out, and batch '
            "norms are folded at export"
        )


def _find_edges(model: nn.Layer, inputs: tuple[Tensor, ...], quantized: list[LayerPlan]) -> Edges:
    """The tensors between quantized layers, once it is known that all of them can be quantized."""
    if not inputs:
        raise LowbitError(
            "outputs: quantized needs to trace the model, to find the tensors between its layers: give "
            "inputs that it takes, prepare(model, recipe, images) or lowbit.quantize(net, recipe, example=x)"
        )
    # The trace names a shared layer by its first name, as plans do.
    edges = find_edges(model, inputs, {found.layer.name for found in quantized})
    plans = {found.layer.name: found.plan for found in quantized}
    for edge in edges.found:
        edge_spec(plans[edge.spec_of], edge.spec_of)
    return edges


def _find_pairs(model: nn.Layer, inputs: tuple[Tensor, ...], quantized: set[int]) -> Folded:
    """The batch norms that can be folded into a layer that the recipe quantizes."""
    if not _batch_norms(model):
        return Folded()
    if not inputs:
        raise LowbitError(
            "batch_norm.fold needs to run the model, to find the layer that each batch norm "
            "follows: give inputs that it takes, prepare(model, recipe, images)"
        )
    found, layers = find_foldable(model, *inputs), dict(model.named_sublayers())
    pairs = [pair for pair in found.pairs if id(layers[pair[0]]) in quantized]
    others = {norm: f"{name} is not quantized" for name, norm in found.pairs if (name, norm) not in pairs}
    return Folded(pairs, found.left_alone | others)


def _batch_norms(model: nn.Layer) -> dict[str, nn.Layer]:
    found = model.named_sublayers(include_self=True)
    return {name: layer for name, layer in found if isinstance(layer, BATCH_NORM | nn.BatchNorm)}


# Executors: integers in C++, or simulation in floats; and why.


def set_executor(
    model: nn.Layer, executor: Executor, *, device: str = "cpu", qat_in_floats: bool = False
) -> list[str]:
    """Set the executor of the quantized layers of a prepared model; returns messages for the user.

    `auto` takes integers where the scales allow it, `integer` is an error where they do not. In quantization-
    aware training it is about forward alone. `qat_in_floats` is for mixed precision, on whose grid the
    products of quantization-aware training are computed.

    set_executor(model, "integer")
    """
    layers = [layer for layer in model.sublayers(include_self=True) if is_quantized(layer)]
    if not layers:
        return []
    parts = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, BackwardQuantizers)]
    simulated = {} if executor == "simulate" else _simulated(model, qat_in_floats=qat_in_floats)
    missing = why_missing() if device == "cpu" else f"the C++ kernels are for the CPU, not for {device}"
    if executor == "integer" and (missing or simulated):
        reasons = [missing] if missing else _lines(simulated)
        raise LowbitError("executor integer cannot be had: " + "\n  ".join(reasons))
    chosen: Executor = "simulate" if missing else executor
    for layer in layers:
        layer.executor = "simulate" if qat_in_floats else chosen
    for part in parts:
        part.executor = chosen
    what = "products" if parts else "forward products"
    if executor == "simulate":
        return [f"{what} of integers are simulated in floats, as asked for"]
    if missing:
        return [f"{what} of integers are simulated in floats: {missing}"]
    if simulated:
        lines = [f"{what} in integers in C++, but for these, simulated in floats:", *_lines(simulated)]
        return ["\n  ".join(lines)]
    return [f"{what} in integers in C++"]


def _simulated(model: nn.Layer, *, qat_in_floats: bool) -> dict[str, list[str]]:
    """`product: reason` -> the layers whose product cannot run in integers though it is quantized."""
    found: dict[str, list[str]] = {}
    layers = dict(model.named_sublayers(include_self=True))
    for assigned in preparation_of(model).layers:
        name, layer = assigned.layer.name, layers[assigned.layer.name]
        if not is_quantized(layer):
            continue
        reasons = assigned.plan.runs_in_integers(assigned.layer.type)
        if assigned.plan.is_straight_through and qat_in_floats:
            reasons["forward"] = "mixed precision computes it on its own grid"
        elif hasattr(layer, "fold"):
            reasons["forward"] = "the weight is quantized with its batch norm folded into it"
        for product, why in reasons.items():
            if why and "straight-through" not in why:
                found.setdefault(f"{product}: {why}", []).append(name)
    return found


def _lines(simulated: dict[str, list[str]]) -> list[str]:
    return [
        f"{reason} ({', '.join(layers) if len(layers) < 4 else f'{layers[0]} and {len(layers) - 1} more'})"
        for reason, layers in simulated.items()
    ]


# Quantizing only some of the layers.


def quantized_layers(model: nn.Layer) -> dict[str, nn.Layer]:
    """The quantized layers of a model by name, in its order."""
    return {name: layer for name, layer in layers_by_name(model).items() if is_quantized(layer)}


@contextmanager
def quantizing_only(model: nn.Layer, names: Collection[str]) -> Iterator[None]:
    """Within it, and in evaluation mode, only the layers of these names quantize their operands.

    Tensors between layers (`outputs: quantized`) are quantized with all of them only. Nothing of the model's
    state is touched.

    with quantizing_only(model, {"conv1"}):
        logits = model(images)
    """
    layers = quantized_layers(model)
    for name in names:
        if name not in layers:
            raise LowbitError(f'no quantized layer "{name}": {did_you_mean(name, list(layers))}')
    with eval_mode(model), ExitStack() as undo:
        if set(names) != layers.keys():
            undo.enter_context(without_edges(model))
        for name, layer in layers.items():
            if name not in names:
                for quantizer in ("input_quantizer", "weight_quantizer"):
                    # An attribute of the object hides the sublayer of that name, which stays where it is.
                    object.__setattr__(layer, quantizer, _unchanged)
                    undo.callback(object.__delattr__, layer, quantizer)
        yield


def _unchanged(x: Tensor) -> Tensor:
    return x
