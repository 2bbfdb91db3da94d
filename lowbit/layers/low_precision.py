"""The operands of a layer's three products in low-precision training: which quantizer makes which."""

from __future__ import annotations

import math
from collections.abc import Callable

from paddle import Tensor, nn

from lowbit.layers.draws import Draws
from lowbit.layers.operand import Operand
from lowbit.layers.products import Executor
from lowbit.layers.training_quantizer import TrainingQuantizer
from lowbit.numerics.fused_groups import ChannelRanges
from lowbit.recipe.plan import Plan
from lowbit.recipe.spec import TensorSpec

GRADIENTS = ("grad_input.grad_output", "grad_weight.grad_output")
# What the backward products take from forward, unless they quantize it in their own way.
FORWARD_OF = {"grad_input.weight": "forward.weight", "grad_weight.input": "forward.input"}


class BackwardQuantizers(nn.Layer):
    """What the backward products of a layer have of their own: quantizers, and random numbers.

    `layouts` gives layout and shape of `input`, `weight` and `grad_output`; `number` tells layers apart.
    """

    def __init__(
        self, plan: Plan, layouts: dict[str, tuple[str, list[int]]], *, number: int, name: str
    ) -> None:
        super().__init__()
        self.gradients_in_full = False  # for a last phase of training
        self.executor: Executor = "auto"
        # Sees every operand as it is made: its name, the values and what they became (lowbit.layers.watch).
        self.look: Callable[[str, Tensor, Operand], None] | None = None
        for operand in (*GRADIENTS, *FORWARD_OF):
            spec, role = spec_of(plan, operand), operand.split(".")[1]
            if spec is None or is_shared(plan, operand):
                continue
            layout, shape = layouts[role]
            role = "gradient" if role == "grad_output" else role
            quantizer = TrainingQuantizer(spec, layout, role, shape=shape, name=name)
            self.add_sublayer(_key(operand), quantizer)
        self.draws = Draws(number) if plan.is_stochastic else None
        self.shared = frozenset(operand for operand in FORWARD_OF if is_shared(plan, operand))

    def quantizer(self, operand: str) -> TrainingQuantizer | None:
        """The operand's own; None where it has none."""
        return self._sub_layers.get(_key(operand))


class Operands:
    """The operands of one call of a layer: made in forward, and still there in backward."""

    def __init__(self, layer: nn.Layer) -> None:
        self._layer, self._backward = layer, layer.backward_quantizers
        self._draws = self._backward.draws
        if self._draws is not None:
            self._draws.next_step()

    @property
    def executor(self) -> Executor:
        """Who multiplies."""
        return self._backward.executor

    def make(self, operand: str, x: Tensor, known: ChannelRanges | None = None) -> Operand:
        """`x` quantized as the plan says of the operand, such as `forward.input`.

        `known` are the ranges of this same `x`, where several operands are made of it.
        """
        quantizer = self._quantizer(operand)
        if quantizer is None or (operand in GRADIENTS and self._backward.gradients_in_full):
            return Operand(data=x.detach())
        roundings, spec = [None], quantizer.spec
        if spec.rounding == "stochastic":
            size = math.prod(x.shape)
            roundings = [self._draws.rounding(operand, sample, size=size) for sample in range(spec.samples)]
        made = quantizer.operand(x, roundings, known)
        if self._backward.look is not None:
            self._backward.look(operand, x, made)
        return made

    def is_shared(self, operand: str) -> bool:
        """Whether a backward product takes the operand as forward has quantized it."""
        return operand in self._backward.shared

    def _quantizer(self, operand: str) -> TrainingQuantizer | None:
        if operand == "forward.input":
            return self._layer.input_quantizer
        if operand == "forward.weight":
            return self._layer.weight_quantizer
        return self._backward.quantizer(operand)


def is_shared(plan: Plan, operand: str) -> bool:
    """Whether a backward product takes an operand as forward has quantized it: no second quantizing.

    Because its product is straight-through, or because both specs are the same (and draw no random numbers,
    which are each product's own).
    """
    if operand not in FORWARD_OF:
        return False
    spec = spec_of(plan, operand)
    return spec is None or (spec == spec_of(plan, FORWARD_OF[operand]) and spec.rounding == "nearest")


def spec_of(plan: Plan, operand: str) -> TensorSpec | None:
    """The spec of `product.operand`; None where the product is straight-through."""
    product, name = operand.split(".")
    found = getattr(plan, product)
    return None if found is None else getattr(found, name)


def in_full_gradients(model: nn.Layer, wanted: bool) -> bool:
    """From now on, gradients in full precision or not; returns whether any layer quantizes them at all."""
    parts = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, BackwardQuantizers)]
    for part in parts:
        part.gradients_in_full = wanted
    return bool(parts)


def _key(operand: str) -> str:
    return operand.replace(".", "_")
