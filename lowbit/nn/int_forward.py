"""Forward passes in integers: of quantization-aware training, and the reference of what engines compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.kernels.gemm import INTEGER_SCALES
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.float_gradients import in_floats
from lowbit.nn.int_matmul import in_integers
from lowbit.nn.linear_ops import LinearOp
from lowbit.nn.qtensor import QTensor, SavedQTensor, round_operand, with_axes_of
from lowbit.nn.quantizer import KnownScale, Quantizer
from lowbit.numerics import Grid, fused, nearest
from lowbit.numerics.exact import add, as_float32, as_type_of, divide, multiply
from lowbit.numerics.fake_quant import on_grid, straight_through
from lowbit.numerics.fused import Clipped, on_grid_marked

_EXACT = "_lowbit_exact_product"
FROZEN = "lowbit_frozen"
# Here the scales are one factor of the whole output, so that those of a convolution hold for all layers:
# a scale per pixel, which Linear and Conv2DTranspose may have, stays inside.
_SCALES = {operand: set(letters) for operand, letters in INTEGER_SCALES["Conv2D"]["forward"].items()}


class Frozen(nn.Layer):
    """The constants of a layer that is being exported, as buffers, which a program can carry."""

    def __init__(
        self,
        *,
        bounds: tuple[float, float],
        integers: Tensor,
        input_scale: Tensor,
        output_scale: Tensor,
        bias: Tensor | None,
    ) -> None:
        super().__init__()
        self.bounds = bounds  # of the input's integers
        for name, value in (
            ("integers", integers),
            ("input_scale", input_scale),
            ("output_scale", output_scale),
            ("bias", bias),
        ):
            self.register_buffer(name, value)


@paddle.jit.not_to_static  # decided in Python, before a program is made of it
def runs_in_integers(layer: nn.Layer) -> bool:
    """Whether this call computes in integers: in evaluation, with scales that the sum does not run over.

    With a gradient to record it does not, since integers have none: the values are the same then, but for
    the rounding of floats, and the gradient goes straight through.
    """
    if layer.training or (paddle.in_dynamic_mode() and paddle.is_grad_enabled()):
        return False
    return forward_is_of_integers(layer)


def forward_is_of_integers(layer: nn.Layer) -> bool:
    """Whether both operands of forward are integers, with scales that come out of its sum."""
    return all(
        isinstance(quantizer, Quantizer)  # not a class of the user's own
        and quantizer.gives_integers
        and _SCALES[operand].issuperset(quantizer.spec.granularity.letters)
        for operand, quantizer in (("input", layer.input_quantizer), ("weight", layer.weight_quantizer))
    )


@paddle.jit.not_to_static
def integer_form(layer: nn.Layer, x: Tensor, *geometry: Any) -> Tensor:
    """product(integers of x, integers of w) * (scale of x * scale of w) + bias.

    The integers are held in fp32, whose sums are exact as long as they stay below 2^24: then this is what an
    integer engine computes, to the last bit, in whichever order it adds.
    """
    constants = getattr(layer, FROZEN, None)
    if constants is not None:
        # Rounded inside of the bounds, which are integers: what clipping behind the rounding gives.
        quotient = divide(as_float32(x), constants.input_scale)
        x_integers = nearest(paddle.clip(quotient, *constants.bounds))
        w_integers = constants.integers.cast("float32")
        scale, bias = constants.output_scale, constants.bias
    else:
        weight, bias = layer.effective_weight_and_bias()
        x_integers, x_scale = layer.input_quantizer.integers(x)
        w_integers, w_scale = layer.weight_quantizer.integers(weight)
        scale = multiply(x_scale, per_output(layer, w_scale))
    if getattr(layer, _EXACT, False):
        # fp64 holds every integer up to 2^53: no sum of a layer comes near.
        x_integers, w_integers = x_integers.cast("float64"), w_integers.cast("float64")
    y = multiply(as_float32(layer.product(x_integers, w_integers, None, *geometry)), scale)
    if bias is not None:
        y = add(y, as_float32(bias).reshape(along_outputs(layer)))
    return as_type_of(x, y)


@contextmanager
def integer_reference(model: nn.Layer) -> Iterator[None]:
    """Within it, and in evaluation, the sums of every quantized layer are exact, however large they get.

    What `verify` holds engines and the model itself to: slow, and nothing in it is rounded but what
    stands between two layers.

    with integer_reference(model):
        logits = model(images)
    """
    layers = [layer for layer in model.sublayers(include_self=True) if hasattr(layer, "weight_quantizer")]
    with eval_mode(model):
        for layer in layers:
            object.__setattr__(layer, _EXACT, True)
        try:
            yield
        finally:
            for layer in layers:
                object.__delattr__(layer, _EXACT)


def along_outputs(layer: nn.Layer) -> list[int]:
    """The shape in which a number per output channel is broadcast against the layer's output."""
    channels_last = isinstance(layer, nn.Linear) or layer._data_format.endswith("C")
    return [-1] if channels_last else [-1, 1, 1]


def per_output(layer: nn.Layer, scale: Tensor) -> Tensor:
    """The weight's scale, one number or one per output channel, as the output has its channels."""
    if math.prod(scale.shape) == 1:
        return scale.reshape([1])
    groups = layer._groups if isinstance(layer, nn.Conv2DTranspose) else 1
    # A transposed convolution's weight is [in, out / groups, …]: its groups share their scales.
    return paddle.tile(scale.reshape([-1]), [groups]).reshape(along_outputs(layer))


# QAT with integer forward products and float gradients.
#
# The results equal the float product of the fake-quantized operands up to the rounding of sums, which
# integers do not have. The operands' integers are saved for the backward pass, a quarter or an eighth of
# the memory; the gradients are computed from their values, which equal the fake-quantized ones bit for bit.


@paddle.jit.not_to_static  # decided in Python, before a program is made of it
def may_run_in_integers(layer: nn.Layer, x: Tensor) -> bool:
    """Whether this call's product may be one of integers: in training, on a CPU with kernels."""
    if not layer.training or layer.executor == "simulate":
        return False
    if not paddle.in_dynamic_mode() or kernels() is None:
        return False
    if x.dtype != paddle.float32 or layer.weight.dtype != paddle.float32 or not x.place.is_cpu_place():
        return False
    quantizers = (layer.input_quantizer, layer.weight_quantizer)
    # Who listens to a quantizer hears it only when it is called.
    heard = any(quantizer._forward_pre_hooks or quantizer._forward_post_hooks for quantizer in quantizers)
    return not heard and forward_is_of_integers(layer)


def integer_forward(layer: nn.Layer, x: Tensor, weight: Tensor, *geometry: Any) -> Tensor:
    """The layer's product without its bias; in floats after all for NaN, or shapes no kernel is made for."""
    y = _in_one_node(layer, x, weight, *geometry)
    if y is not None:
        return y
    x, x_scale = layer.input_quantizer.values_and_scale(x)
    weight, w_scale = layer.weight_quantizer.values_and_scale(weight)
    x = layer.before_product(x)
    operands = (
        _operand(x, x_scale, layer.input_quantizer),
        _operand(weight, w_scale, layer.weight_quantizer),
    )
    learning = (not x.stop_gradient, not weight.stop_gradient)
    return _IntegerForward.apply(x, weight, layer.linear_op(x, *geometry), operands, learning)


def _operand(values: Tensor, scale: Tensor, quantizer: Quantizer) -> QTensor:
    """The integers of values that are whole multiples of the scale; with a NaN, which is none, the values."""
    scale = with_axes_of(values, scale.detach())
    made = round_operand(values.detach(), scale, quantizer.grid())
    return made if made.scale is scale else QTensor(data=values.detach())


def _in_one_node(layer: nn.Layer, x: Tensor, weight: Tensor, *geometry: Any) -> Tensor | None:
    """Quantized and multiplied in one node; None where the quantizers need nodes of their own.

    One scale for the input, kept or averaged, with or without PACT; dynamic scales for the weight.
    """
    if getattr(layer, "_padding_mode", "zeros") != "zeros" or 0 in x.shape:
        return None
    made = layer.weight_quantizer.dynamic_operand(weight)
    if made is None:
        return None
    known = layer.input_quantizer.known_scale(x)
    if known is None:
        return None
    alpha = None if known.bound is None else layer.input_quantizer.alpha.value
    operand, clipped = _input_operand(x, known)
    grid = layer.weight_quantizer.grid()
    operands = operand, _dynamic_operand(weight, grid, *made)
    learning = tuple(tensor is not None and not tensor.stop_gradient for tensor in (x, alpha, weight))
    # The largest magnitude is the highest integer of a symmetric grid: nothing is clipped, unless it is NaN.
    may_clip = grid.lowest != -grid.highest or not operands[1].is_integer
    steps = _Quantizing(clipped, KnownScale(made[1], grid, clips=may_clip), learning)
    return _QuantizedForward.apply(x, alpha, weight, layer.linear_op(x, *geometry), operands, steps)


def _input_operand(x: Tensor, known: KnownScale) -> tuple[QTensor, Clipped | None]:
    """The integers of x, or with a NaN the values; and where it was clipped, unless it is on the grid."""
    scale, grid = known.scale, known.grid
    data, clipped, broken = on_grid_marked(x, scale, grid, bound=known.bound, integers=True)
    operand = QTensor(data=data, scale=scale, lowest=grid.lowest, highest=grid.highest)
    if broken:
        operand = QTensor(data=on_grid_marked(x, scale, grid, bound=known.bound)[0])
    return operand, clipped if known.clips else None


def _dynamic_operand(weight: Tensor, grid: Grid, data: Tensor, scale: Tensor, broken: int) -> QTensor:
    if not broken:
        return QTensor(data=data, scale=scale, lowest=grid.lowest, highest=grid.highest)
    return QTensor(data=on_grid(weight.detach(), scale, grid))


@dataclass(frozen=True, eq=False)
class _Quantizing:
    """What the gradients need besides the operands: nothing of x but where it was clipped."""

    clipped: Clipped | None
    of_weight: KnownScale
    learning: tuple[bool, ...]  # x, PACT's bound, the weight


class _QuantizedForward(PyLayer):
    """Y of quantized X and W, with their gradients straight through; of PACT's bound, too.

    What `_IntegerForward` is behind the nodes of two quantizers, bit for bit.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        alpha: Tensor | None,
        weight: Tensor,
        linear_op: LinearOp,
        operands: tuple[QTensor, QTensor],
        steps: _Quantizing,
    ) -> Tensor:
        ctx.linear_op, ctx.steps, ctx.has_bound = linear_op, steps, alpha is not None
        ctx.x, ctx.weight = map(SavedQTensor, operands)
        fused.save_for_backward(ctx, weight)
        y = in_integers(linear_op, "forward", *operands)
        return linear_op.forward(*(operand.values() for operand in operands)) if y is None else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        _check_first_order()
        (weight,) = fused.saved_unchanged(ctx)
        clipped, (of_x, of_bound, of_weight) = ctx.steps.clipped, ctx.steps.learning
        dy, dx, dbound, dweight = dy.contiguous(), None, None, None
        linear_op = in_floats(ctx.linear_op, dy)
        if of_x or of_bound:
            dx = linear_op.grad_input(dy, ctx.weight.operand().values())
            if clipped is not None:
                dx, dbound = clipped.gradients(dx, (of_x, of_bound), overwrite=True)
        if of_weight:
            dweight = linear_op.grad_weight_of_operand(dy, ctx.x.operand())
            if ctx.steps.of_weight.clips:
                dweight = _through_weight(dweight, weight, ctx.steps.of_weight)
        return (dx, dbound, dweight) if ctx.has_bound else (dx, dweight)


def _through_weight(dweight: Tensor, weight: Tensor, known: KnownScale) -> Tensor:
    """The gradient of a weight from that of its quantized values."""
    given = (dweight, weight, known.scale, known.grid)
    seen_as = fused.layout(weight, known.scale)
    if seen_as is None:
        return straight_through(*given)
    through, _ = fused.straight_through(*given, seen_as)
    assert through is not None  # wanted
    return through


def _check_first_order() -> None:
    if paddle.is_grad_enabled():
        raise LowbitError(
            "a gradient of a gradient cannot go through a product of integers: "
            'set_executor(model, "simulate") multiplies in floats'
        )


class _IntegerForward(PyLayer):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        linear_op: LinearOp,
        operands: tuple[QTensor, QTensor],
        learning: tuple[bool, bool],
    ) -> Tensor:
        ctx.linear_op, ctx.learning = linear_op, learning
        ctx.x, ctx.weight = map(SavedQTensor, operands)
        y = in_integers(linear_op, "forward", *operands)
        return linear_op.forward(x, weight) if y is None else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        _check_first_order()
        dy, dx, dweight = dy.contiguous(), None, None
        linear_op = in_floats(ctx.linear_op, dy)
        if ctx.learning[0]:
            dx = linear_op.grad_input(dy, ctx.weight.operand().values())
        if ctx.learning[1]:
            dweight = linear_op.grad_weight_of_operand(dy, ctx.x.operand())
        return dx, dweight
