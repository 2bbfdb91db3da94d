"""A layer's plan: its three products, the specs of their operands, and whether they can run in integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from lowbit.errors import LowbitError
from lowbit.kernels.gemm import INTEGER_SCALES, SUMS_OVER
from lowbit.recipe.spec import FULL_SPEC, TensorSpec

_SIGNED_BYTE, _BYTE = 127, 255


@dataclass(frozen=True, kw_only=True)
class Forward:
    """Y, out of the input X and the weight W."""

    name: ClassVar[str] = "forward"
    input: TensorSpec = FULL_SPEC
    weight: TensorSpec = FULL_SPEC


@dataclass(frozen=True, kw_only=True)
class GradInput:
    """dX, out of the output gradient dY and the weight W."""

    name: ClassVar[str] = "grad_input"
    grad_output: TensorSpec = FULL_SPEC
    weight: TensorSpec = FULL_SPEC


@dataclass(frozen=True, kw_only=True)
class GradWeight:
    """dW, out of the output gradient dY and the input X."""

    name: ClassVar[str] = "grad_weight"
    grad_output: TensorSpec = FULL_SPEC
    input: TensorSpec = FULL_SPEC


Product = Forward | GradInput | GradWeight
PRODUCTS: dict[str, type[Product]] = {product.name: product for product in (Forward, GradInput, GradWeight)}


def operands_of(product: Product) -> dict[str, TensorSpec]:
    """A product's two operands by name.

    >>> list(operands_of(GradInput()))
    ['grad_output', 'weight']
    """
    return {field.name: getattr(product, field.name) for field in fields(product)}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is quantized in a layer, and how.

    A backward product that is None is straight-through: it takes the forward operands as they were quantized,
    and the gradient in full. That is quantization-aware training. One that is given quantizes its own
    operands: low-precision training.

    >>> Plan(forward=Forward(weight=TensorSpec(grid="int8", granularity="N"))).is_full
    False
    """

    forward: Forward = Forward()
    grad_input: GradInput | None = None
    grad_weight: GradWeight | None = None

    def __post_init__(self) -> None:
        for product in self.products():
            for operand, spec in operands_of(product).items():
                self._check_operand(product, operand, spec)

    def products(self) -> list[Product]:
        """The products that have specs of their own."""
        return [product for product in (self.forward, self.grad_input, self.grad_weight) if product]

    @property
    def is_full(self) -> bool:
        """Whether nothing in the layer is quantized, so that it can be left as it is."""
        return all(spec == FULL_SPEC for p in self.products() for spec in operands_of(p).values())

    @property
    def is_straight_through(self) -> bool:
        """Whether only `forward` is quantized: quantization-aware training."""
        return self.grad_input is None and self.grad_weight is None

    @property
    def is_stochastic(self) -> bool:
        """Whether any operand is rounded at random."""
        return any(spec.rounding == "stochastic" for p in self.products() for spec in operands_of(p).values())

    def runs_in_integers(self, layer_type: str = "Conv2D") -> dict[str, str | None]:
        """For each product None when it can run in integers, otherwise the reason why it cannot.

        >>> Plan().runs_in_integers()["forward"]
        'input is on the grid full'
        """
        found: dict[str, str | None] = {}
        for name in PRODUCTS:
            product = getattr(self, name)
            found[name] = (
                why_not_in_integers(layer_type, name, operands_of(product))
                if product
                else "straight-through: the gradient is in full precision"
            )
        return found

    def _check_operand(self, product: Product, operand: str, spec: TensorSpec) -> None:
        if not spec.grid.is_integer:
            return
        problem = None
        if operand != "weight" and spec.keeps_scales and set(spec.granularity.letters) - {"C"}:
            problem = (
                f"scaling {spec.scaling} keeps its scales from batch to batch, so they cannot be per "
                f"{spec.granularity}; use per-tensor, C, or scaling dynamic"
            )
        elif operand != "input" and spec.sign != "fixed":
            problem = f"sign {spec.sign} is for inputs only: weights and gradients have both signs"
        elif spec.sign == "asymmetric" and not self.is_straight_through:
            problem = "sign asymmetric is for QAT; in low-precision training use sign auto"
        elif spec.observer.name == "sensitivity" and not self._can_weigh(product, operand, spec):
            problem = (
                "observer sensitivity is for the inputs of quantization-aware training or of none, with "
                "scaling fixed and granularity per-tensor: calibration chooses such a scale by gradients"
            )
        elif spec.grid.midrise and (operand != "weight" or not self.is_straight_through):
            problem = f"the grid {spec.grid} is for the weights of QAT: it has no 0"
        elif operand != "grad_output" and (for_gradients := _for_gradients_only(spec)):
            problem = f"{for_gradients} is for gradients only (grad_output)"
        elif operand == "grad_output" and spec.is_trained:
            problem = "scaling learned and clip pact are trained by gradients; a gradient itself has none"
        elif product is not self.forward and operand != "grad_output" and spec.is_trained:
            if spec != getattr(self.forward, operand):
                problem = f"learned and pact are trained by forward; give forward.{operand} the same spec"
        elif product is self.forward and self.is_straight_through and spec.rounding == "stochastic":
            problem = (
                "rounding stochastic trains what is not deployed, which rounds to nearest; use it where "
                "grad_input or grad_weight are quantized, too"
            )
        if problem:
            raise LowbitError(f"{product.name}.{operand}: {problem}")

    def _can_weigh(self, product: Product, operand: str, spec: TensorSpec) -> bool:
        fixed = spec.scaling.name == "fixed" and not spec.granularity.letters
        return fixed and product is self.forward and operand == "input" and self.is_straight_through


def _for_gradients_only(spec: TensorSpec) -> str | None:
    if spec.grid.logarithmic:
        return f"the grid {spec.grid}"
    if spec.scaling.name == "hindsight":
        return f"scaling {spec.scaling}"
    return f"rotation {spec.rotation}" if spec.rotation else None


def why_not_in_integers(layer_type: str, product: str, operands: Mapping[str, TensorSpec]) -> str | None:
    """The reason why a product cannot run in integers, or None when it can.

    >>> x, w = TensorSpec(grid="int8"), TensorSpec(grid="int8", granularity="C")
    >>> why_not_in_integers("Conv2D", "forward", {"input": x, "weight": w})
    'weight has scales per C, but forward sums over the input channels and the kernel; it may have them per N'
    """
    for operand, spec in operands.items():
        if not spec.grid.is_integer:
            return f"{operand} is on the grid {spec.grid}"
        if spec.rotation:
            return f"{operand} is rotated, and what is turned back is on no grid"
        if spec.samples * spec.grid.highest > (_SIGNED_BYTE if spec.grid.signed else _BYTE):
            return f"the sum of {spec.samples} samples of {operand} on the grid {spec.grid} leaves a byte"
    for operand, spec in operands.items():
        allowed = INTEGER_SCALES[layer_type][product][operand]
        if not set(spec.granularity.letters) <= set(allowed):
            return (
                f"{operand} has scales per {spec.granularity}, "
                f"but {product} sums over {SUMS_OVER[product]}; it may have them per {allowed}"
            )
    return None
