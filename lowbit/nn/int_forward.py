"""Forward passes in integers: of quantization-aware training, and the reference of what engines compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.kernels.gemm import INTEGER_SCALES
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.int_matmul import in_integers
from lowbit.nn.linear_ops import LinearOp, in_floats
from lowbit.nn.qtensor import QTensor, SavedQTensor, round_operand, with_axes_of
from lowbit.nn.quantizer import Quantizer
from lowbit.numerics import nearest
from lowbit.numerics.exact import add, as_float32, as_type_of, divide, multiply

_EXACT = "_lowbit_exact_product"
FROZEN = "lowbit_frozen"
# Here the scales are one factor of the whole output, so that those of a convolution hold for all layers:
# a scale per pixel, which Linear and Conv2DTranspose may have, stays inside.
_SCALES = INTEGER_SCALES["Conv2D"]["forward"]


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
        and set(quantizer.spec.granularity.letters) <= set(_SCALES[operand])
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
        if paddle.is_grad_enabled():
            raise LowbitError(
                "a gradient of a gradient cannot go through a product of integers: "
                'set_executor(model, "simulate") multiplies in floats'
            )
        dy, dx, dweight = dy.contiguous(), None, None
        linear_op = in_floats(ctx.linear_op, dy)
        if ctx.learning[0]:
            dx = linear_op.grad_input(dy, ctx.weight.operand().values())
        if ctx.learning[1]:
            dweight = linear_op.grad_weight(dy, ctx.x.operand().values())
        return dx, dweight
