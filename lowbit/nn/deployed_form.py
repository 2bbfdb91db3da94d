"""What is deployed of a quantized layer: its integers and scales, with dynamic scales fixed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.nn.convert import note_preparation, preparation_of
from lowbit.nn.edge_quantizers import SharedQuantizer, edge_name, edge_quantizers
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.int_forward import FROZEN, Frozen, per_output, runs_in_integers
from lowbit.nn.quant_layers import is_quantized, replan_layer
from lowbit.nn.quantizer import Quantizer
from lowbit.numerics import parse_grid, quantize_to_integers
from lowbit.numerics.exact import as_float32, multiply, negate
from lowbit.numerics.fake_quant import usable_bound
from lowbit.numerics.grid import FEWEST_BITS, MOST_BITS
from lowbit.recipe import Forward, Plan, Recipe, TensorSpec, operands_of
from lowbit.recipe.recipe import CalibrationSettings
from lowbit.recipe.rules import Rule


@dataclass(frozen=True, kw_only=True)
class DeployedOperand:
    """An operand on its grid: `integers * scale`, the integers from `lowest` to `highest`.

    The bounds of an input can be inside those of its grid, where PACT clips: to clip and then round is to
    round and then clip to the rounded bounds.
    """

    lowest: int
    highest: int
    bits: int
    signed: bool
    zero_point: int = 0  # of a learned offset (LSQ+): how many integers are below 0
    scale: np.ndarray  # float32; one number, or what broadcasts against the operand


def deployed_weight(layer: nn.Layer) -> tuple[np.ndarray, DeployedOperand]:
    """The integers (int16, in the layer's own layout) of a quantized layer's weight, and what they mean.

    integers, operand = deployed_weight(model.conv1)
    weight = integers * operand.scale
    """
    quantizer = _quantizer(layer, "weight")
    with paddle.no_grad():
        weight, _ = layer.effective_weight_and_bias()
        integers, scale = quantizer.integers(weight)
    if not np.isfinite(scale.numpy()).all() or not np.isfinite(integers.numpy()).all():
        raise LowbitError(f'the weight of layer "{quantizer.layer_name}" has NaN or Inf in it')
    grid = quantizer.grid()
    operand = DeployedOperand(
        lowest=grid.lowest,
        highest=grid.highest,
        bits=grid.storage_bits,
        signed=grid.signed,
        scale=scale.numpy(),
    )
    return integers.numpy().astype(np.int16), operand


def deployed_input(layer: nn.Layer) -> DeployedOperand:
    """The deployed form of a quantized layer's input; a LowbitError if its scale is dynamic.

    bounds = deployed_input(model.conv1)
    """
    return deployed_operand(_quantizer(layer, "input"))


def deployed_edges(model: nn.Layer) -> dict[str, DeployedOperand]:
    """What becomes of the tensors between layers that `outputs: quantized` puts on grids, by name."""
    return {edge_name(*at): deployed_operand(found) for at, found in edge_quantizers(model).items()}


def deployed_operand(quantizer: Quantizer) -> DeployedOperand:
    """The deployed form of an activation; a LowbitError if its scale is dynamic."""
    quantizer.check_ready()
    scale, grid = quantizer.scale(), quantizer.grid()
    what = f'the {quantizer.role} of layer "{quantizer.layer_name}"'
    if scale is None:
        raise LowbitError(
            f"the scale of {what} is chosen in every call "
            f"({quantizer.spec}), which int8 engines cannot do: use scaling moving_average, learned or fixed"
        )
    lowest, highest = grid.lowest, grid.highest
    if quantizer.alpha is not None:
        bound = usable_bound(quantizer.alpha.value)
        highest = min(highest, int(quantize_to_integers(bound, scale, grid).min()))
        if grid.signed:
            lowest = max(lowest, int(quantize_to_integers(negate(bound), scale, grid).max()))
    if scale.size != 1:
        raise LowbitError(
            f"{what} has a scale per channel ({quantizer.spec}), over "
            "which the layer sums: to deploy it, use granularity per-tensor"
        )
    return DeployedOperand(
        lowest=lowest,
        highest=highest,
        bits=grid.bits,
        signed=grid.signed,
        zero_point=grid.zero_point,
        scale=scale.numpy().reshape([]),
    )


def _quantizer(layer: nn.Layer, role: Literal["input", "weight"]) -> Quantizer:
    quantizer = getattr(layer, f"{role}_quantizer")
    if not isinstance(quantizer, Quantizer) or not quantizer.is_plain:
        raise LowbitError(
            f"the {role} of a {type(layer).__name__} is quantized by your own class, hook or method "
            f"({type(quantizer).__name__}), which lowbit cannot write as integers"
        )
    if not quantizer.gives_integers:
        raise LowbitError(
            f'the {role} of layer "{quantizer.layer_name}" is on the grid {quantizer.spec.grid.name}, '
            "which has no integers"
        )
    return quantizer


@contextmanager
def weights_in_bits(model: nn.Layer, bits: int) -> Iterator[int]:
    """Within it, in evaluation, signed weights are rounded to at most `bits` bits; yields how many layers.

    Products of an 8-bit activation and a 7-bit weight do not saturate on processors without VNNI. Scales are
    chosen as before, for the smaller grid; a learned step grows with it. The model's state stays.

    with weights_in_bits(model, 7) as layers:
        export_onnx(model, "inference.onnx", model_name="net", image_shape=(3, 32, 32))
    """
    if not FEWEST_BITS <= bits <= MOST_BITS:
        raise LowbitError(f"weights have {FEWEST_BITS} to {MOST_BITS} bits, not {bits}")
    with ExitStack() as undo:
        count = 0
        for layer in model.sublayers(include_self=True):
            if is_quantized(layer) and (fewer := _in_bits(layer.weight_quantizer, bits)) is not None:
                # An attribute of the object hides the sublayer of that name, which stays where it is.
                object.__setattr__(layer, "weight_quantizer", fewer)
                undo.callback(object.__delattr__, layer, "weight_quantizer")
                count += 1
        yield count


def _in_bits(quantizer: nn.Layer, bits: int) -> Quantizer | None:
    """A quantizer for the same weight with fewer bits; None where it has no more than that."""
    if not isinstance(quantizer, Quantizer) or not (quantizer.is_plain and quantizer.gives_integers):
        return None
    old = quantizer.grid()
    if not old.signed or old.logarithmic or old.bits is None or old.bits <= bits:
        return None
    new = parse_grid(f"int{bits}-narrow" if old.narrow else f"int{bits}")
    fewer = copy.deepcopy(quantizer)
    fewer.spec = replace(quantizer.spec, grid=new)
    if fewer.step is not None:
        fewer.step.value.set_value(fewer.step.value * (old.highest / new.highest))
    return fewer


# Fixing dynamic input scales, which integer engines cannot compute.


_FIXED = {"granularity": "per-tensor", "scaling": "fixed"}
_ONE_ITERATION = {"observer": "mse(1)"}  # what training with dynamic scales has; `mse` alone would be 50
_NEAREST = {"rounding": "nearest", "samples": "1"}


def dynamic_inputs(model: nn.Layer) -> list[str]:
    """The quantized layers whose inputs have dynamic scales.

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
        and not quantizer.has_fixed_scale
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
    inputs = dynamic_inputs(model)
    rules.append(Rule(match={"name": inputs}, forward={"input": _FIXED}))
    specs = {assigned.layer.name: assigned.plan.forward.input for assigned in prepared.layers}
    if by_mse := [name for name in inputs if str(specs[name].observer) == "mse"]:
        rules.append(Rule(match={"name": by_mse}, forward={"input": _ONE_ITERATION}))
    calibration = CalibrationSettings(**prepared.recipe.calibration.model_dump() | {"steps": steps})
    # What concerns training alone has no state in the copy.
    done = {"fix_scales": 0, "progressive": [], "oscillation": None}
    return prepared.recipe.model_copy(update={"rules": rules, "calibration": calibration, **done})


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
            shared = layer.input_quantizer
            replan_layer(layer, plan, name=assigned.layer.name, pact=recipe.pact, lsq=recipe.lsq)
            if isinstance(shared, SharedQuantizer):  # its scale is another module's, which stays
                layer.input_quantizer = shared
        plans.append(replace(assigned, plan=plan))
    note_preparation(fixed, replace(prepared, recipe=recipe, layers=tuple(plans)))
    return fixed


def _fixed_plan(plan: Plan, *, fix_input: bool) -> Plan:
    """Its forward product, rounded to nearest."""
    specs = {}
    for operand, spec in operands_of(plan.forward).items():
        words = spec.as_words() | (_NEAREST if spec.rounding == "stochastic" else {})
        if fix_input and operand == "input":
            words |= _FIXED | (_ONE_ITERATION if words["observer"] == "mse" else {})
        specs[operand] = TensorSpec(**words)
    return Plan(forward=Forward(**specs))


def fix_inputs(model: nn.Layer, fixed: nn.Layer, batches: Iterable[Tensor | Sequence[Tensor]]) -> int:
    """Give `fixed`, a `fixed_copy`, the model's weights, and scales from the batches.

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
    """The scales that `fix_inputs` chose for `fixed`, by name, for `restore_inputs`."""
    layers = dict(fixed.named_sublayers(include_self=True))
    return {
        f"{layer}.input_quantizer.{name}": tensor.numpy()
        for layer in dynamic_inputs(model)
        for name, tensor in layers[layer].input_quantizer.state_dict().items()
    }


def restore_inputs(model: nn.Layer, fixed: nn.Layer, scales: Mapping[str, np.ndarray]) -> None:
    """Give `fixed`, a `fixed_copy`, the model's weights and the scales of an earlier `fix_inputs`."""
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


def _shows(quantizer: Quantizer) -> Callable[[nn.Layer, tuple[Tensor, ...]], None]:
    def look(_layer: nn.Layer, inputs: tuple[Tensor, ...]) -> None:
        quantizer(inputs[0])

    return look


# Frozen models: what does not depend on the input is computed once, before export.


@contextmanager
def frozen(model: nn.Layer) -> Iterator[None]:
    """Within it, and in evaluation, quantized layers use their integers and scales as constants.

    A program that is exported meanwhile carries the weights' integers instead of the weights and the
    operators that quantize them. The answers are the same, to the last bit. A layer whose scales are chosen
    in every call, or that does not compute in integers, stays as it is.

    with frozen(model):
        paddle.jit.save(model, "inference", input_spec=[spec])
    """
    done: list[nn.Layer] = []
    with eval_mode(model):
        try:
            for layer in model.sublayers(include_self=True):
                if hasattr(layer, "weight_quantizer") and runs_in_integers(layer) and _freeze(layer):
                    done.append(layer)
            yield
        finally:
            for layer in done:
                delattr(layer, FROZEN)


def _freeze(layer: nn.Layer) -> bool:
    try:
        bounds = deployed_input(layer)
    except LowbitError:  # its message is for those who want integers in a file
        return False
    weight, bias = layer.effective_weight_and_bias()
    integers, w_scale = layer.weight_quantizer.integers(weight)
    x_scale = paddle.to_tensor(bounds.scale.reshape([1]))
    constants = Frozen(
        bounds=(float(bounds.lowest), float(bounds.highest)),
        # A quarter of the file; a grid's integers fit, but for those of uint8.
        integers=integers.cast("int8" if layer.weight_quantizer.grid().highest < 128 else "uint8"),
        input_scale=x_scale,
        output_scale=multiply(x_scale, per_output(layer, w_scale)),
        bias=None if bias is None else as_float32(bias).clone(),
    )
    setattr(layer, FROZEN, constants)
    return True
