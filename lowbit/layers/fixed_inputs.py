"""Input scales that evaluation chooses in every call become fixed ones: what int8 engines can compute."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.prepare import note_preparation, preparation_of
from lowbit.layers.quantized import is_quantized, replan_layer
from lowbit.layers.quantizer import Quantizer
from lowbit.recipe import Forward, Plan, Recipe, TensorSpec, operands_of
from lowbit.recipe.recipe import Calibration
from lowbit.recipe.rules import Rule

_FIXED = {"granularity": "per-tensor", "scaling": "fixed"}
_NEAREST = {"rounding": "nearest", "samples": "1"}


def dynamic_inputs(model: nn.Layer) -> list[str]:
    """The quantized layers whose input has no scale that is known before the images are.

    >>> recipe = make_recipe({"activation_quantize_type": "abs_max"})
    >>> dynamic_inputs(prepare(nn.Sequential(nn.Linear(4, 2)), recipe))
    ['0']
    """
    return [
        name
        for name, layer in model.named_sublayers(include_self=True)
        if is_quantized(layer)
        and isinstance(quantizer := layer.input_quantizer, Quantizer)
        and quantizer.gives_integers
        and not quantizer.spec.keeps_scales
    ]


def fixed_recipe(model: nn.Layer, *, steps: int) -> Recipe:
    """The recipe of what is deployed of a prepared model: `forward` alone, with the inputs' scales fixed.

    One per tensor, the mean over `steps` batches of what the layer's own observer finds. Rounded to nearest,
    as evaluation does.

    fixed = prepare(Net(), fixed_recipe(trained, steps=20))
    """
    prepared = preparation_of(model)
    rules = [
        Rule(match=rule.match, skip=rule.skip, forward=rule.forward)
        for rule in prepared.recipe.rules
        if rule.skip or rule.forward
    ]
    for operand in ("input", "weight"):
        drawn = [
            assigned.layer.name
            for assigned in prepared.layers
            if getattr(assigned.plan.forward, operand).rounding == "stochastic"
        ]
        if drawn:
            rules.append(Rule(match={"name": drawn}, forward={operand: _NEAREST}))
    rules.append(Rule(match={"name": dynamic_inputs(model)}, forward={"input": _FIXED}))
    calibration = Calibration(**prepared.recipe.calibration.model_dump() | {"steps": steps})
    return prepared.recipe.model_copy(update={"rules": rules, "calibration": calibration})


def fixed_copy(model: nn.Layer, *, steps: int) -> nn.Layer:
    """A copy of a prepared model whose layers are those of its `fixed_recipe`; the model stays as it is.

    The new scales are not known before `fix_inputs` has been called.

    fixed = fixed_copy(trained, steps=20)
    fix_inputs(trained, fixed, batches)
    """
    prepared = preparation_of(model)
    recipe = fixed_recipe(model, steps=steps)
    dynamic = set(dynamic_inputs(model))
    fixed = copy.deepcopy(model)
    layers = dict(fixed.named_sublayers(include_self=True, remove_duplicate=False))
    plans = []
    for assigned in prepared.layers:
        layer, plan = layers[assigned.layer.name], assigned.plan
        if is_quantized(layer):
            fix = assigned.layer.name in dynamic
            plan = _fixed_plan(plan, fix_input=fix)
            replan_layer(layer, plan, name=assigned.layer.name, pact=recipe.pact)
        plans.append(replace(assigned, plan=plan))
    note_preparation(fixed, replace(prepared, recipe=recipe, layers=tuple(plans)))
    return fixed


def _fixed_plan(plan: Plan, *, fix_input: bool) -> Plan:
    """Its forward product, rounded to nearest."""
    specs = {}
    for operand, spec in operands_of(plan.forward).items():
        words = spec.as_words() | (_NEAREST if spec.rounding == "stochastic" else {})
        specs[operand] = TensorSpec(**words | (_FIXED if fix_input and operand == "input" else {}))
    return Plan(forward=Forward(**specs))


def fix_inputs(model: nn.Layer, fixed: nn.Layer, batches: Iterable[Tensor | Sequence[Tensor]]) -> int:
    """Let `fixed`, a `fixed_copy`, have the model's weights, and scales from the batches.

    They are chosen from what the model's layers get while it computes as in evaluation, quantized. A batch is
    the model's input, or the list of its inputs. Returns the number of batches.

    fix_inputs(model, fixed, batches)
    """
    _share_state(model, fixed)
    old, new, count = dict(model.named_sublayers()), dict(fixed.named_sublayers()), 0
    quantizers = {name: new[name].input_quantizer for name in dynamic_inputs(model)}
    with eval_mode(model), ExitStack() as undo:
        for name, quantizer in quantizers.items():
            quantizer.start_calibration()
            undo.callback(quantizer.end_calibration)
            undo.callback(old[name].register_forward_pre_hook(_shows(quantizer)).remove)
        for batch in batches:
            model(*batch) if isinstance(batch, list | tuple) else model(batch)
            count += 1
    if not count:
        raise LowbitError("there are no images to fix the inputs' scales on")
    fixed.eval()
    return count


def input_scales(model: nn.Layer, fixed: nn.Layer) -> dict[str, np.ndarray]:
    """What `fix_inputs` has found out for `fixed`, by name: `restore_inputs` takes it."""
    layers = dict(fixed.named_sublayers(include_self=True))
    return {
        f"{layer}.input_quantizer.{name}": tensor.numpy()
        for layer in dynamic_inputs(model)
        for name, tensor in layers[layer].input_quantizer.state_dict().items()
    }


def restore_inputs(model: nn.Layer, fixed: nn.Layer, scales: Mapping[str, np.ndarray]) -> None:
    """Let `fixed`, a `fixed_copy`, have the model's weights, and the scales of an earlier `fix_inputs`."""
    _share_state(model, fixed)
    wanted = input_scales(model, fixed)
    if wanted.keys() != scales.keys() or any(wanted[key].shape != scales[key].shape for key in wanted):
        raise LowbitError("the fixed scales are of another network: export it again")
    state = fixed.state_dict()
    for name, value in scales.items():
        state[name].set_value(paddle.to_tensor(value))
    fixed.eval()


def _share_state(model: nn.Layer, fixed: nn.Layer) -> None:
    state = fixed.state_dict()  # Paddle warns of every name that is missing: those of the new scales stay
    state.update((name, value) for name, value in model.state_dict().items() if name in state)
    fixed.set_state_dict(state)


def _shows(quantizer: Quantizer):
    def look(_layer: nn.Layer, inputs: tuple[Tensor, ...]) -> None:
        quantizer(inputs[0])

    return look
