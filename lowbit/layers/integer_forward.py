"""Quantization-aware training with its forward products in real integers; gradients stay those of floats.

The same numbers as the float product of the fake-quantized operands, but for the rounding of its sums, which
integers do not have. What is kept for the backward pass is the operands' integers, a quarter of the memory or
an eighth; the gradients are made of their values, which are the fake-quantized ones to the last bit.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.layers.contraction import Contraction
from lowbit.layers.integer_form import forward_is_of_integers
from lowbit.layers.integer_products import in_integers
from lowbit.layers.kept_operand import KeptOperand
from lowbit.layers.operand import Operand, round_operand, with_axes_of
from lowbit.layers.quantizer import Quantizer


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
    return _IntegerForward.apply(x, weight, layer.contraction(x, *geometry), operands, learning)


def _operand(values: Tensor, scale: Tensor, quantizer: Quantizer) -> Operand:
    """The integers of values that are whole multiples of the scale; with a NaN, which is none, the values."""
    scale = with_axes_of(values, scale.detach())
    made = round_operand(values.detach(), scale, quantizer.grid())
    return made if made.scale is scale else Operand(data=values.detach())


class _IntegerForward(PyLayer):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        contraction: Contraction,
        operands: tuple[Operand, Operand],
        learning: tuple[bool, bool],
    ) -> Tensor:
        ctx.contraction, ctx.learning = contraction, learning
        ctx.x, ctx.weight = map(KeptOperand, operands)
        y = in_integers(contraction, "forward", *operands)
        return contraction.forward(x, weight) if y is None else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if paddle.is_grad_enabled():
            raise LowbitError(
                "a gradient of a gradient cannot go through a product of integers: "
                'set_executor(model, "simulate") multiplies in floats'
            )
        dy, dx, dweight = dy.contiguous(), None, None
        if ctx.learning[0]:
            dx = ctx.contraction.grad_input(dy, ctx.weight.operand().values())
        if ctx.learning[1]:
            dweight = ctx.contraction.grad_weight(dy, ctx.x.operand().values())
        return dx, dweight
