"""The recipe: ordered rules that give every layer of a model its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from paddle import nn
from pydantic import BeforeValidator, Field, model_validator

from lowbit.config.base import Count, Number, parse_number
from lowbit.config.yaml_file import KeyPath
from lowbit.errors import LowbitError
from lowbit.numerics import FULL
from lowbit.numerics.grid import FEWEST_BITS, MOST_BITS
from lowbit.recipe.model_layers import ModelLayer, find_layers
from lowbit.recipe.plan import PRODUCTS, Plan, operands_of
from lowbit.recipe.rules import Rule
from lowbit.recipe.spec import NO_ROTATION, PER_TENSOR, FrozenSection, SpecSettings, TensorSpec

Sources = Mapping[KeyPath, str]  # where each key of a recipe was written, such as `recipe.yaml:7`
# product -> operand -> key of a TensorSpec -> value
_Settings = dict[str, dict[str, dict[str, Any]]]


class CalibrationSettings(FrozenSection):
    """Calibration batches, used before training to choose the first scales.

    `correct_bias` takes out of the biases what the rounded weights add to the outputs on average.
    """

    steps: Count = 0
    correct_bias: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _has_batches(self) -> CalibrationSettings:
        if self.correct_bias and not self.steps:
            raise ValueError("correct_bias needs batches: {steps: 10, correct_bias: true}")
        return self


class BatchNorm(FrozenSection):
    """What becomes of a batch norm after a quantized layer.

    `fold: training` quantizes the weight with the batch norm folded into it; `calibration` folds for good,
    before the scales are chosen; `export` folds when exporting.
    """

    fold: Literal["training", "calibration", "export"] = "export"
    freeze_after: Count | None = None  # steps, after which its statistics are fixed


def _initial(value: Any) -> Any:
    if value == "data":
        return value
    try:
        return parse_number(value)
    except ValueError:
        raise ValueError(f"expected `data` or a number above 0, got {value!r}") from None


class Pact(FrozenSection):
    """How the clipping bounds of `clip: pact` are trained.

    PaddleSlim's own are `{initial: 100, learning_rate: 1000, weight_decay: 0}`.
    """

    initial: Annotated[
        Literal["data"] | Annotated[float, Field(gt=0, allow_inf_nan=False)], BeforeValidator(_initial)
    ] = "data"
    learning_rate: Annotated[Number, Field(gt=0)] = 1.0  # times the learning rate of the weights
    weight_decay: Annotated[Number, Field(ge=0)] = 1e-4


class Lsq(FrozenSection):
    """How the steps of `scaling: learned` are trained.

    A step's gradient is multiplied by 1 / sqrt(n * highest), with n values that share the step. Of an input
    n counts the values of one image (`image`, as in the paper: features of a layer) or of the batch, which
    makes the gradient smaller by the square root of the batch size.
    """

    learning_rate: Annotated[Number, Field(gt=0)] = 1.0  # times the learning rate of the weights
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    gradient_scale: Literal["batch", "image"] = "batch"


class Oscillation(FrozenSection):
    """Weights whose integers go up and down: measured, and with `damp` or `freeze` kept from it.

    `freeze` is how often a step a weight may turn around, as a moving average, before it keeps its integer.
    """

    momentum: Annotated[Number, Field(gt=0, le=1)] = 0.01  # of the moving averages over steps
    damp: Annotated[Number, Field(ge=0)] = 0.0  # strength, at the end of the run, of a pull to the grid
    freeze: Annotated[Number, Field(gt=0, lt=1)] | None = None


class Stage(FrozenSection):
    """Some epochs of `progressive` training with more bits."""

    bits: Annotated[Count, Field(ge=FEWEST_BITS, le=MOST_BITS)]
    epochs: Annotated[Count, Field(ge=1)]


class ActivationMatmul(FrozenSection):
    """Products of two activations, such as attention's QKᵀ and AV: both operands, and the output's gradient.

    Operands have one scale each, kept from batch to batch, and `sign: auto`, so that softmax's output is on
    an unsigned grid, unless the recipe says otherwise.

    >>> str(ActivationMatmul(operands={"grid": "int8"}).operand_spec())
    'int8/uint8 per-tensor moving_average'
    """

    operands: SpecSettings
    grad_output: SpecSettings | None = None  # low-precision training; its scale is chosen in every call

    @model_validator(mode="after")
    def _can_be_had(self) -> ActivationMatmul:
        try:
            specs = {"operands": self.operand_spec(), "grad_output": self.gradient_spec()}
        except LowbitError as error:
            raise ValueError(str(error)) from None
        for name, spec in specs.items():
            if spec is not None and not spec.grid.is_integer:
                raise ValueError(f"{name} needs an integer grid, such as int8")
            if spec is not None and (spec.granularity != PER_TENSOR or spec.rounding != "nearest"):
                raise ValueError(f"{name} has one scale (per-tensor) and rounding nearest")
            if spec is not None and (spec.rotation != NO_ROTATION or spec.clip != "none"):
                raise ValueError(f"{name} takes no rotation and no clip")
        return self

    def operand_spec(self) -> TensorSpec:
        """Of each of the two operands."""
        given = self.operands.given()
        grid = given.get("grid")
        sign = {} if grid is not None and not grid.signed else {"sign": "auto"}
        return TensorSpec(**{"scaling": "moving_average"} | sign | given)

    def gradient_spec(self) -> TensorSpec | None:
        """Of the output's gradient; None where it stays as it is."""
        return None if self.grad_output is None else TensorSpec(**self.grad_output.given())


class Reconstruction(FrozenSection):
    """Learned rounding after calibration: every block of the network learns to give its fp32 outputs.

    Of weights it is learned whether they are rounded up or down (AdaRound), block by block (BRECQ), while
    the quantization of inputs is left out at random (QDrop) and their steps are learned, too.
    """

    iterations: Count = 400  # of each block; 0: compensation alone
    batch_size: Annotated[Count, Field(ge=1)] = 32
    # For 400 iterations; with n of them 400 / n times as large, so that as far can be gone.
    learning_rate: Annotated[Number, Field(gt=0)] = 0.008  # of the rounding
    step_learning_rate: Annotated[Number, Field(ge=0)] = 0.0012  # of inputs' steps, relative; 0: they stay
    norm_learning_rate: Annotated[Number, Field(ge=0)] = 0.0008  # of batch norms and biases, relative
    regularization: Annotated[Number, Field(ge=0)] = 0.01  # how hard weights are pushed to up or down
    drop: Annotated[Number, Field(ge=0, le=1)] = 0.5  # share of inputs that stay unquantized in a step
    compensate: Annotated[bool, Field(strict=True)] = True  # start from compensated weights (GPTQ)
    full_inputs: Annotated[bool, Field(strict=True)] = False  # inputs are not quantized in compensation
    crop: Count = 32  # pixels; larger inputs of a block are cropped at random, 0: never
    equalize: Annotated[bool, Field(strict=True)] = False  # channels between two layers, before calibration
    distill: Count = 0  # steps in which all blocks then learn together, against the fp32 network's answers
    distill_learning_rate: Annotated[Number, Field(gt=0)] = 0.02  # of weights, in steps of their grid
    distill_drop: Annotated[Number, Field(ge=0, le=1)] = 0.5  # as `drop`
    # Of the outputs of all blocks in the loss, relative to the answers. A few hundred answers are overfitted
    # easily; outputs of blocks have many more values.
    distill_block_weight: Annotated[Number, Field(ge=0)] = 30.0
    # Share of the way back to where it began that each weight goes after a step, at the first learning rate.
    distill_decay: Annotated[Number, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _full_inputs_are_for_compensation_alone(self) -> Reconstruction:
        if self.full_inputs and self.iterations:
            raise ValueError("full_inputs goes with iterations: 0; learned rounding needs quantized inputs")
        if self.full_inputs and not self.compensate:
            raise ValueError("full_inputs is about compensation: leave it out, or set compensate: true")
        return self


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """A layer of a model with its plan, the numbers of the rules that made it, and why it is left alone."""

    layer: ModelLayer
    plan: Plan
    rules: tuple[int, ...] = ()
    note: str = ""


class Recipe(FrozenSection):
    """Ordered rules that give every layer its plan, and settings for the whole model.

    Later rules override earlier ones. `outputs: quantized` quantizes every tensor between two quantized
    layers, also the inputs of sums, pools and activations, so that engines compute all of it in integers.

    >>> recipe = Recipe(rules=[{"forward": {"weight": {"grid": "int8"}}}])
    >>> str(recipe.plans(nn.Sequential(nn.Linear(4, 2)))["0"].forward.weight)
    'int8 per-tensor'
    """

    rules: Annotated[list[Rule], Field(min_length=1)]
    calibration: CalibrationSettings = CalibrationSettings()
    batch_norm: BatchNorm = BatchNorm()
    pact: Pact = Pact()
    lsq: Lsq = Lsq()
    outputs: Literal["full", "quantized"] = "full"
    matmul: ActivationMatmul | None = None
    reconstruction: Reconstruction | None = None
    oscillation: Oscillation | None = None
    progressive: list[Stage] = []  # of QAT: the first epochs with more bits, then those of the rules
    fix_scales: Count = 0  # epochs, the last ones: dynamic scales of inputs are fixed as they are deployed
    reestimate_bn: Count = 0  # training batches, at the end: batch norm's statistics of the final weights

    @model_validator(mode="after")
    def _has_batches_to_fold(self) -> Recipe:
        if self.batch_norm.fold == "calibration" and not self.calibration.steps:
            raise ValueError("batch_norm.fold: calibration needs calibration: {steps: 10}")
        return self

    @model_validator(mode="after")
    def _has_batches_for_matmul(self) -> Recipe:
        spec = None if self.matmul is None else self.matmul.operand_spec()
        what = None if spec is None else needs_calibration(spec, straight_through=True)
        if what and not self.calibration.steps:
            raise ValueError(
                f"matmul has {what}, which calibration finds out; add calibration: {{steps: 20}}"
            )
        return self

    @model_validator(mode="after")
    def _reconstructs_on_images(self) -> Recipe:
        if self.reconstruction is not None and not self.calibration.steps:
            raise ValueError("reconstruction needs images: give calibration: {steps: 16}, too")
        if self.reconstruction is not None and self.calibration.correct_bias:
            raise ValueError("reconstruction corrects biases itself: leave out calibration.correct_bias")
        if self.reconstruction is not None and self.outputs == "quantized":
            # Readers of a shared quantizer would have to learn one step, across blocks.
            raise ValueError("reconstruction goes with outputs: full; leave out one of the two")
        return self

    @model_validator(mode="after")
    def _rounds_to_every_integer(self) -> Recipe:
        freezes = self.oscillation is not None and self.oscillation.freeze
        for rule in self.rules:
            grid = rule.forward and rule.forward.weight and rule.forward.weight.grid
            if grid and grid.midrise and (self.reconstruction is not None or freezes):
                what = "oscillation.freeze" if self.reconstruction is None else "reconstruction"
                raise ValueError(f"{what} rounds weights to any integer, {grid} has odd ones: leave out one")
        return self

    @model_validator(mode="after")
    def _moves_the_weights_that_are_quantized(self) -> Recipe:
        acts = self.oscillation is not None and (self.oscillation.damp or self.oscillation.freeze)
        if acts and self.batch_norm.fold == "training":
            raise ValueError(
                "oscillation.damp and freeze move the weights that are quantized; with batch_norm.fold: "
                "training these are others than the layer's: leave out one of the two"
            )
        return self

    @model_validator(mode="after")
    def _falls_in_bits(self) -> Recipe:
        bits = [stage.bits for stage in self.progressive]
        if sorted(set(bits), reverse=True) != bits:
            raise ValueError(f"the bits of progressive must fall from stage to stage, got {bits}")
        if bits and self.quantizes_gradients:
            raise ValueError("progressive is for QAT, but gradients are quantized: leave it out")
        if bits and not self.calibration.steps:
            raise ValueError("progressive finds scales anew in each stage: add calibration: {steps: 20}")
        if bits and (self.reconstruction is not None or self.outputs == "quantized"):
            raise ValueError("progressive goes with outputs: full and without reconstruction")
        return self

    @property
    def quantizes_gradients(self) -> bool:
        """Whether it is for low-precision training: any gradient is put on a grid other than `full`.

        >>> Recipe(rules=[{"forward": {"weight": {"grid": "int8"}}}]).quantizes_gradients
        False
        """
        given = [keys for rule in self.rules for name, keys in rule.given() if name.endswith(".grad_output")]
        return any(keys.get("grid", FULL) != FULL for keys in given)

    def plans(self, model: nn.Layer) -> dict[str, Plan]:
        """The plan of every Conv2D, Conv2DTranspose and Linear, by the layer's (first) name."""
        return {assigned.layer.name: assigned.plan for assigned in self.assign(model)}

    def assign(self, model: nn.Layer) -> list[LayerPlan]:
        """As `plans`, in the model's order, with each plan's origin; a rule without a layer is an error."""
        layers = find_layers(model)
        for number, rule in enumerate(self.rules, start=1):
            if why := rule.match.why_unused(layers):
                raise LowbitError(f"{rule.called(number)}: it has no effect: {why}")
        return [self._assign_one(layer, len(layers)) for layer in layers]

    def _assign_one(self, layer: ModelLayer, count: int) -> LayerPlan:
        if layer.left_alone:
            return LayerPlan(layer=layer, plan=Plan(), note=layer.left_alone)
        settings: _Settings = {}
        numbers = [n for n, rule in enumerate(self.rules, start=1) if rule.match.matches(layer, count)]
        note = "" if numbers else "no rule is about it"
        try:
            for number in numbers:
                rule = self.rules[number - 1]
                if rule.skip:
                    settings, note = {}, f"skipped by rule {number}"
                else:
                    note = ""
                    _override(settings, rule)
            plan = _plan_of(settings)
            if not self.calibration.steps:
                _check_without_calibration(plan)
            if self.reconstruction is not None:
                _check_can_reconstruct(plan)
        except LowbitError as error:
            made = self._rules_behind(str(error), numbers)
            raise LowbitError(f'the plan of layer "{layer.name}" (from {made}): {error}') from None
        return LayerPlan(layer=layer, plan=plan, rules=tuple(numbers), note=note)

    def _rules_behind(self, error: str, numbers: list[int]) -> str:
        """Those of a layer's rules that set the operand whose name the error begins with."""
        rules = [(number, self.rules[number - 1]) for number in numbers]
        about = [
            (number, rule)
            for number, rule in rules
            if any(error.startswith(f"{name}: ") for name, _ in rule.given())
        ]
        return ", ".join(rule.called(number) for number, rule in about or rules)


def _override(settings: _Settings, rule: Rule) -> None:
    for name, new in rule.given():
        if _is_without_scales(new):
            _spec_of(name, new)  # one rule that says `grid: full` and how to scale contradicts itself
        product, operand = name.split(".")
        operands = settings.setdefault(product, {})
        operands[operand] = operands.get(operand, {}) | new


def _is_without_scales(keys: dict[str, Any]) -> bool:
    return "grid" in keys and not keys["grid"].is_integer


def _plan_of(settings: _Settings) -> Plan:
    products = {}
    for product, operands in settings.items():
        specs = {}
        for operand, keys in operands.items():
            # Settings for another grid have no effect until a rule sets such a grid again.
            used = {"grid": keys["grid"]} if _is_without_scales(keys) else keys
            specs[operand] = _spec_of(f"{product}.{operand}", used)
        products[product] = PRODUCTS[product](**specs)
    return Plan(**products)


def _spec_of(name: str, keys: dict[str, Any]) -> TensorSpec:
    try:
        return TensorSpec(**keys)
    except LowbitError as error:
        raise LowbitError(f"{name}: {error}") from None


def needs_calibration(spec: TensorSpec, *, straight_through: bool) -> str | None:
    """The setting of an input or a gradient that cannot be known before some batches were seen, or None.

    >>> needs_calibration(TensorSpec(grid="int8", sign="auto"), straight_through=True)
    'sign auto'
    """
    if spec.scaling.name == "fixed":
        return "scaling fixed"
    # Low-precision training with dynamic scales sees the sign as it trains.
    return "sign auto" if spec.sign == "auto" and (straight_through or spec.keeps_scales) else None


def _check_without_calibration(plan: Plan) -> None:
    for product in plan.products():
        for operand, spec in operands_of(product).items():
            if operand == "weight":  # it is there from the start
                continue
            if what := needs_calibration(spec, straight_through=plan.is_straight_through):
                raise LowbitError(
                    f"{product.name}.{operand}: it has {what}, which calibration finds out; "
                    "add calibration: {steps: 20}"
                )


def _check_can_reconstruct(plan: Plan) -> None:
    if plan.forward.input.sign == "asymmetric":
        raise LowbitError("forward.input: reconstruction has no offset: give it sign: auto")
    spec = plan.forward.weight
    if spec.grid.is_integer and spec.scaling.name not in ("fixed", "learned"):
        raise LowbitError(
            f"forward.weight: reconstruction learns how to round at scales that stay, but it has scaling "
            f"{spec.scaling}; give it scaling: fixed"
        )


def describe_layers(layers: Iterable[LayerPlan]) -> list[dict[str, Any]]:
    """One entry per layer: what it is, its plan in words, and for each product why it is not in integers."""
    return [
        {
            "index": assigned.layer.index,
            "name": assigned.layer.name,
            "other_names": list(assigned.layer.names[1:]),
            "type": assigned.layer.type,
            "shape": list(assigned.layer.shape),
            "quantized": not assigned.plan.is_full,
            "rules": list(assigned.rules),
            "note": assigned.note,
            "plan": _describe_plan(assigned.plan),
            "why_not_in_integers": assigned.plan.runs_in_integers(assigned.layer.type),
        }
        for assigned in layers
    ]


def _describe_plan(plan: Plan) -> dict[str, Any]:
    """Each product's operands in words; None where it is straight-through."""
    return {
        name: {operand: spec.as_words() for operand, spec in operands_of(product).items()}
        if product
        else None
        for name, product in ((name, getattr(plan, name)) for name in PRODUCTS)
    }
