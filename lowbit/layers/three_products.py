"""A layer's three products in training, each with operands quantized for it: low-precision training.

What is kept for the backward pass is small: the input as integers, half a byte or a byte each (or as it is,
where `grad_weight` wants it in full), never a float copy of a quantized one. Gradients go straight through
the quantizers: dX is what the product dY·W gives, dW what dY·X gives. What learns with an operand (LSQ, PACT)
stands before this.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError
from lowbit.layers.contraction import Contraction
from lowbit.layers.kept_operand import KeptOperand
from lowbit.layers.low_precision import Operands
from lowbit.layers.operand import Operand
from lowbit.layers.product_scale import attach_scale
from lowbit.layers.products import multiply_operands
from lowbit.numerics.fused_groups import ChannelRanges


def three_products(x: Tensor, weight: Tensor, contraction: Contraction, operands: Operands) -> Tensor:
    """Y, whose backward computes dX and dW; without the bias, whose gradient is not quantized."""
    learning = (not x.stop_gradient, not weight.stop_gradient)
    return _ThreeProducts.apply(x, weight, contraction, operands, learning)


class _ThreeProducts(PyLayer):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        contraction: Contraction,
        operands: Operands,
        learning: tuple[bool, bool],
    ) -> Tensor:
        ctx.contraction, ctx.operands, ctx.learning = contraction, operands, learning
        x_operand = operands.make("forward.input", x)
        w_operand = operands.make("forward.weight", weight)
        y = multiply_operands(contraction, "forward", x_operand, w_operand, operands.executor)
        attach_scale(y, contraction, x_operand, w_operand)
        if learning[1]:
            shared = operands.is_shared("grad_weight.input")
            ctx.x = KeptOperand(x_operand if shared else operands.make("grad_weight.input", x))
        if learning[0]:
            ctx.w_is_ready = operands.is_shared("grad_input.weight")
            # Else quantized when its turn comes: the weight itself is there until the optimizer's step.
            ctx.w = KeptOperand(w_operand if ctx.w_is_ready else Operand(data=weight))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if paddle.is_grad_enabled():
            raise LowbitError("there are no gradients of gradients through a layer in low precision")
        dy, dx, dweight = dy.contiguous(), None, None
        operands = ctx.operands
        # Where both products need it, dY is read once for the scales of both.
        known = ChannelRanges(dy) if all(ctx.learning) else None
        if ctx.learning[0]:
            w = ctx.w.operand()
            if not ctx.w_is_ready:
                w = operands.make("grad_input.weight", w.data)
            dy_operand = operands.make("grad_input.grad_output", dy, known)
            dx = multiply_operands(ctx.contraction, "grad_input", dy_operand, w, operands.executor)
        if ctx.learning[1]:
            dy_operand = operands.make("grad_weight.grad_output", dy, known)
            x = ctx.x.operand()
            dweight = multiply_operands(ctx.contraction, "grad_weight", dy_operand, x, operands.executor)
        return dx, dweight
