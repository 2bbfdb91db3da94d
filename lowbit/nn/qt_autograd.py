"""Low-precision training of one layer: forward, grad_input and grad_weight, each with quantized operands.

From top to bottom: `_QTLinear` is the autograd node, `QTProducts` the whole of W4A4G4, forward and backward;
`Operands` quantizes what each product takes, by the quantizers of `BackwardQuantizers` and, for stochastic
rounding, the random numbers of `RoundingRNG`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import paddle
import paddle.distributed as dist
from paddle import Tensor, nn
from paddle.autograd import PyLayer

from lowbit.accel.fused_norm import IntegerScale, SavedMultiples
from lowbit.accel.norm_ops import SCALE_ATTRIBUTE, scale_of_rows
from lowbit.errors import LowbitError
from lowbit.nn.int_matmul import (
    Executor,
    ProductName,
    forward_in_multiples,
    forward_of_unrounded,
    gradient_of_unrounded,
    is_small,
    multiply_operands,
)
from lowbit.nn.linear_ops import ChannelsLast, Convolution, LinearOp
from lowbit.nn.qtensor import QTensor, SavedQTensor
from lowbit.nn.scale_state import first_integer
from lowbit.nn.training_quantizer import TrainingQuantizer
from lowbit.numerics import Rounding, Stochastic
from lowbit.numerics.fused_groups import ChannelRanges, DynamicBytes
from lowbit.recipe.plan import Plan
from lowbit.recipe.spec import TensorSpec

# Operands are named by their product. What the backward products take from forward, unless they quantize it
# in their own way, is in FORWARD_OF.
_OPERANDS = ("forward.input", "forward.weight", "grad_input.grad_output", "grad_input.weight",
             "grad_weight.grad_output", "grad_weight.input")  # fmt: skip
_SAMPLES = 2  # roundings of one operand, at most
GRADIENTS = ("grad_input.grad_output", "grad_weight.grad_output")
FORWARD_OF = {"grad_input.weight": "forward.weight", "grad_weight.input": "forward.input"}


def qt_linear(x: Tensor, weight: Tensor, linear_op: LinearOp, operands: Operands) -> Tensor:
    """Y, whose backward computes dX and dW; without the bias, whose gradient is not quantized.

    What clips or learns a step (PACT, LSQ) comes before it.
    """
    learning = (not x.stop_gradient, not weight.stop_gradient)
    return _QTLinear.apply(x, weight, linear_op, operands, learning)


class _QTLinear(PyLayer):
    """The three products of `QTProducts` as one autograd node."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        linear_op: LinearOp,
        operands: Operands,
        learning: tuple[bool, bool],
    ) -> Tensor:
        ctx.products = QTProducts(linear_op, operands, learning)
        y, scale = ctx.products.multiply(x, weight)
        if scale is not None:
            setattr(y, SCALE_ATTRIBUTE, scale)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if paddle.is_grad_enabled():
            raise LowbitError("second-order gradients are not supported for layers in low precision")
        return ctx.products.backward(dy.contiguous())


class QTProducts:
    """A product and its two gradients, each of quantized operands; gradients pass straight through `q`.

    forward      Y  = q(X)  · q(W)
    grad_input   dX = q(dY) · q(W)
    grad_weight  dW = q(dY) · q(X)

    `·` is a convolution or a matrix product and its derivatives (`linear_op`). Each `q` is that of its own
    operand in the plan, so the dY of dX and the dY of dW may lie on two grids. A backward product without
    a plan takes X or W as forward has quantized them. X is saved for backward as integers of half a byte or
    a byte (as it is, where `grad_weight` takes it in full precision), never as a float copy.
    """

    computes_again, needs_ranges = False, True

    def __init__(
        self,
        linear_op: LinearOp,
        operands: Operands,
        learning: tuple[bool, bool],
        ranges: Tensor | None = None,
    ) -> None:
        """`ranges` are max |X| of every channel of every image, where they are known."""
        self._linear_op, self._operands, self._learning = linear_op, operands, learning
        self._ranges = ranges
        self._x: SavedQTensor | None = None
        self._w: SavedQTensor | None = None
        self._w_is_ready = False

    def multiply(self, x: Tensor, weight: Tensor) -> tuple[Tensor, tuple[Tensor, bool] | None]:
        """Y; and its scale, if it has one, with whether its multiples may need more than 16 bits."""
        x_operand, w_operand = self._forward_operands(x, weight)
        y = multiply_operands(self._linear_op, "forward", x_operand, w_operand, self._operands.executor)
        return y, integer_scale(self._linear_op, x_operand, w_operand)

    def _forward_operands(self, x: Tensor, weight: Tensor) -> tuple[QTensor, QTensor]:
        """X and W quantized; what backward needs of them is saved."""
        operands, known = self._operands, self._known_of(x)
        x_operand = operands.make("forward.input", x, known)
        w_operand = operands.make("forward.weight", weight)
        if self._learning[1]:
            shared = operands.is_shared("grad_weight.input")
            self._x = SavedQTensor(x_operand if shared else operands.make("grad_weight.input", x, known))
        if self._learning[0]:
            self._w_is_ready = operands.is_shared("grad_input.weight")
            # Else quantized when its turn comes: the weight itself is there until the optimizer's step.
            self._w = SavedQTensor(w_operand if self._w_is_ready else QTensor(data=weight))
        return x_operand, w_operand

    def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor | SavedMultiples, IntegerScale | None]:
        """Y, as multiples where a kernel writes these; and its scale for every channel of every image."""
        linear_op, executor = self._linear_op, self._operands.executor
        found = self._forward_in_one_call(x, weight)
        if found is not None:
            return found
        x_operand, w_operand = self._forward_operands(x, weight)
        shape = x_operand.data.shape[0], w_operand.data.shape[0]
        scale = integer_scale(linear_op, x_operand, w_operand, images=shape[0])
        whole = None if scale is None else IntegerScale(scale_of_rows(scale[0], shape), scale[1])
        if whole is not None and executor != "simulate":
            multiples = forward_in_multiples(linear_op, x_operand, w_operand, whole)
            if multiples is not None:
                return multiples, whole
        y = multiply_operands(linear_op, "forward", x_operand, w_operand, executor)
        return y.contiguous(), whole

    def _forward_in_one_call(self, x: Tensor, weight: Tensor) -> tuple[SavedMultiples, IntegerScale] | None:
        """What `forward` gives; None where operands are made one by one."""
        operands, (of_x, of_weight) = self._operands, self._learning
        if operands.executor == "simulate" or (of_x and operands.is_shared("grad_input.weight")):
            return None
        if of_weight and not operands.is_shared("grad_weight.input"):
            return None
        a = operands.unrounded("forward.input", x, self._known_of(x))
        b = operands.unrounded("forward.weight", weight)
        found = None if a is None or b is None else forward_of_unrounded(self._linear_op, a, b)
        if found is None:
            return None
        self._x = found.x if of_weight else None
        self._w = SavedQTensor(QTensor(data=weight)) if of_x else None
        return found.multiples, found.whole

    def _known_of(self, x: Tensor) -> ChannelRanges | None:
        return None if self._ranges is None else ChannelRanges(x, self._ranges)

    def again(self) -> Tensor:
        raise NotImplementedError("integers are saved")

    def backward(self, dy: Tensor, ranges: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """dX and dW; `ranges` are max |dY| of every channel of every image, where they are known."""
        # Where both products need it, dY is read once for the scales of both.
        known = ChannelRanges(dy, ranges) if all(self._learning) or ranges is not None else None
        dweight = self._gradient("grad_weight", dy, known, self._x) if self._learning[1] else None
        if not self._learning[0]:
            return None, dweight
        weight = None if self._w_is_ready else self._w.operand().data
        return self._gradient("grad_input", dy, known, self._w, weight), dweight

    def _gradient(
        self,
        product: ProductName,
        dy: Tensor,
        known: ChannelRanges | None,
        saved: SavedQTensor,
        weight: Tensor | None = None,
    ) -> Tensor:
        """The product of dY and what is saved; `weight`, if given, is to be quantized in its place."""
        operands, linear_op = self._operands, self._linear_op
        of_dy, of_weight = f"{product}.grad_output", f"{product}.weight"
        if operands.executor != "simulate":  # in one call, where everything can be made on the way
            unrounded = operands.unrounded(of_dy, dy, known)
            other = saved if weight is None else operands.unrounded(of_weight, weight)
            if unrounded is not None and other is not None:
                found = gradient_of_unrounded(linear_op, product, unrounded, other)
                if found is not None:
                    return found
        second = saved.operand() if weight is None else operands.make(of_weight, weight)
        first = operands.make(of_dy, dy, known)
        return multiply_operands(linear_op, product, first, second, operands.executor)


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

    def make(self, operand: str, x: Tensor, known: ChannelRanges | None = None) -> QTensor:
        """`x` quantized as the plan says of the operand, such as `forward.input`.

        `known` are the ranges of this same `x`, where several operands are made of it.
        """
        quantizer = self._quantizer(operand)
        if quantizer is None:
            return QTensor(data=x.detach())
        made = quantizer.operand(x, self._roundings(operand, quantizer.spec, x), known)
        if self._backward.look is not None:
            self._backward.look(operand, x, made)
        return made

    def unrounded(self, operand: str, x: Tensor, known: ChannelRanges | None = None) -> DynamicBytes | None:
        """`x` for a kernel that quantizes it on the way to a product; None where `make` has to."""
        quantizer = self._quantizer(operand)
        # A class or method of the user's own is heard only if it is called.
        if type(quantizer) is not TrainingQuantizer or "operand" in vars(quantizer):
            return None
        if self._backward.look is not None:
            return None
        return quantizer.unrounded(x, self._roundings(operand, quantizer.spec, x), known)

    def _roundings(self, operand: str, spec: TensorSpec, x: Tensor) -> list[Rounding | None]:
        if spec.rounding != "stochastic":
            return [None]
        size = math.prod(x.shape)
        return [self._draws.rounding(operand, sample, size=size) for sample in range(spec.samples)]

    def is_shared(self, operand: str) -> bool:
        """Whether a backward product takes the operand as forward has quantized it."""
        return operand in self._backward.shared

    def _quantizer(self, operand: str) -> TrainingQuantizer | None:
        """None for an operand in full precision."""
        if operand in GRADIENTS and self._backward.gradients_in_full:
            return None
        if operand == "forward.input":
            return self._layer.input_quantizer
        if operand == "forward.weight":
            return self._layer.weight_quantizer
        return self._backward.quantizer(operand)


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
        # Sees every operand as it is made: its name, the values and what they became (lowbit.nn.inspect).
        self.look: Callable[[str, Tensor, QTensor], None] | None = None
        for operand in (*GRADIENTS, *FORWARD_OF):
            spec, role = spec_of(plan, operand), operand.split(".")[1]
            if spec is None or is_shared(plan, operand):
                continue
            layout, shape = layouts[role]
            role = "gradient" if role == "grad_output" else role
            quantizer = TrainingQuantizer(spec, layout, role, shape=shape, name=name)
            self.add_sublayer(_key(operand), quantizer)
        self.draws = RoundingRNG(number) if plan.is_stochastic else None
        self.shared = frozenset(operand for operand in FORWARD_OF if is_shared(plan, operand))

    def quantizer(self, operand: str) -> TrainingQuantizer | None:
        """The operand's own; None where it has none."""
        return self._sub_layers.get(_key(operand))


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


class RoundingRNG(nn.Layer):
    """Counts the steps of one layer; the count is a buffer, so that a resumed run draws what it would have.

    >>> draws = RoundingRNG(layer=3)
    >>> draws.next_step()
    >>> draws.rounding("forward.input", 0, size=10).step
    1
    """

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer, self.seed = layer, 0
        self.register_buffer("step", paddle.zeros([1], "int64"))

    def next_step(self) -> None:
        """To be called once in every forward pass of training."""
        paddle.increment(self._buffers["step"])

    def rounding(self, operand: str, sample: int, *, size: int) -> Stochastic:
        """The rounding of an operand of `size` values in this step; `sample` tells several of it apart."""
        return Stochastic(
            seed=self.seed,
            step=first_integer(self._buffers["step"]),
            layer=(self.layer * len(_OPERANDS) + _OPERANDS.index(operand)) * _SAMPLES + sample,
            # A rank's part of a batch draws as that part of the whole would; the weight is the same on all.
            first=0 if operand.endswith(".weight") or not dist.is_initialized() else size * dist.get_rank(),
        )


def seed_rounding(model: nn.Layer, seed: int) -> None:
    """Let all layers of a model draw by the seed of a run."""
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, RoundingRNG):
            layer.seed = seed


# The common factor of an integer product's values, which lets a batch norm save them in two or three bytes.
#
# As an attribute of the product, which user code may change in place, it is only a proposal: the batch norm's
# kernel divides every value by it, and saves multiples only if all of them reproduce the value.


def integer_scale(
    linear_op: LinearOp, x: QTensor, weight: QTensor, images: int | None = None
) -> tuple[Tensor, bool] | None:
    """The scale of Y, a product `forward` of images in NCHW; and whether 16 bits are too few for integers.

    A convolution's has `images` rows where that is given, else one where all images share it.
    """
    if not (x.is_integer and weight.is_integer) or x.data.ndim != 4 or isinstance(linear_op, ChannelsLast):
        return None
    if isinstance(linear_op, Convolution):
        scale = linear_op.forward_scale(x.scale, weight.scale, images)
    else:
        scale = linear_op.forward_scale(x.scale, weight.scale)
    if scale is None:
        return None
    return scale, not (is_small(x.lowest, x.highest) and is_small(weight.lowest, weight.highest))
