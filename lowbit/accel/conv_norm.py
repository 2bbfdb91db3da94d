"""A convolution and the batch norm of its output, with all that follows in the same pass, as one node."""

from __future__ import annotations

from typing import Any, Protocol

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.accel.fused_norm import IntegerScale, NormPass, SavedMultiples
from lowbit.errors import LowbitError
from lowbit.numerics import fused
from lowbit.numerics.fused import new_tensor


class Products(Protocol):
    """A convolution's products for one call; between forward and backward it holds their operands."""

    computes_again: bool  # whether Y is cheap to compute and large to save
    needs_ranges: bool  # whether backward has a use for the ranges of dY

    def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor | SavedMultiples, IntegerScale | None]:
        """Y, or the multiples that it is; and what it may be whole multiples of."""

    def again(self) -> Tensor:
        """Y once more."""

    def backward(self, dy: Tensor, ranges: Tensor | None) -> tuple[Tensor | None, ...]:
        """dX and dW, those that are wanted; `ranges` are max |dY| of every channel of every image."""


class ConvNormNode(PyLayer):
    """A convolution and the batch norm of its output, with all that follows in the same pass, as one node.

    The convolution's output is nobody else's: it is saved as integers or computed again, and its gradient
    exists only between the two backward passes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        other: Tensor | None,
        products: Products,
        norm: NormPass,
    ) -> Tensor:
        inputs = (x, weight, norm_weight, norm_bias, other)
        ctx.given = [tensor is not None for tensor in inputs]
        ctx.learning = [tensor is not None and not tensor.stop_gradient for tensor in inputs]
        ctx.products, ctx.norm = products, norm
        product, norm.whole = products.forward(x, weight)
        y = norm.forward(product, norm_weight, norm_bias, None if other is None else other.contiguous())
        ctx.product = product if norm.multiples is None and not products.computes_again else None
        ctx.kept = [norm_weight is not None, norm_bias is not None]
        fused.save_for_backward(ctx, *(t for t in (norm_weight, norm_bias) if t is not None))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if paddle.is_grad_enabled():
            raise LowbitError(
                "second-order gradients are not supported for a fused convolution and batch norm: "
                "use the network without lowbit.fuse, or without accelerate()"
            )
        saved, norm, products = iter(fused.saved_unchanged(ctx)), ctx.norm, ctx.products
        norm_weight, norm_bias = (next(saved) if kept else None for kept in ctx.kept)
        product, is_ours = ctx.product, False
        if product is None and norm.multiples is None:
            product, is_ours = products.again(), True
        of_product = any(ctx.learning[:2])
        largest = new_tensor([*dy.shape[:2], 1, 1]) if of_product and products.needs_ranges else None
        gradients = norm.backward(
            product,
            norm_weight,
            norm_bias,
            dy.contiguous(),
            [of_product, *ctx.learning[2:]],
            overwrite=is_ours,
            largest=largest,
        )
        of_product_, *others = gradients
        dx, dw = products.backward(of_product_, largest) if of_product else (None, None)
        wanted = zip((dx, dw, *others), ctx.learning, ctx.given, strict=True)
        return tuple(gradient if learns else None for gradient, learns, given in wanted if given)
