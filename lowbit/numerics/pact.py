"""PACT: clipping at a bound that is learned, alone and together with quantizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.kernels.quantize import Layout
from lowbit.numerics import fused
from lowbit.numerics.clip import clip_to_bound, lower_bound, usable_bound
from lowbit.numerics.exact import as_float32, negate
from lowbit.numerics.grid import Grid
from lowbit.numerics.groups import sum_to_shape
from lowbit.numerics.observers import parse_observer
from lowbit.numerics.quantize import fake_quantize, straight_through
from lowbit.numerics.scale import nan_where_not_finite


def pact_clip(x: Tensor, alpha: Tensor, *, signed: bool = True) -> Tensor:
    """`x` clipped to [-alpha, alpha], or, unsigned, to [0, alpha]; `alpha` is broadcast.

    That is x - relu(x - alpha) + relu(-alpha - x), without rounding the differences. The gradient of
    `x` is 1 inside (the bounds included) and 0 outside; of `alpha` 1 where x > alpha, -1 where x < -alpha,
    0 elsewhere, summed over what shares it. An alpha below the smallest normal float counts as that.
    alpha is a range: the scale behind it is scale_from_range(alpha, grid).

    Plain operators without a gradient to record, as in fake_quantize.

    >>> alpha = paddle.to_tensor([2.0], stop_gradient=False)
    >>> y = pact_clip(paddle.to_tensor([-5.0, 1.0, 3.0, 4.0]), alpha)
    >>> y.tolist()
    [-2.0, 1.0, 2.0, 2.0]
    >>> y.sum().backward()
    >>> alpha.grad.tolist()
    [1.0]
    """
    learning = (not x.stop_gradient, not alpha.stop_gradient)
    if paddle.is_grad_enabled() and any(learning):
        return _PactClip.apply(x, alpha, signed, learning)
    return clip_to_bound(x, alpha, signed=signed)


def pact_fake_quantize(x: Tensor, alpha: Tensor, scale: Tensor, grid: Grid) -> Tensor:
    """fake_quantize(pact_clip(x, alpha, signed=grid.signed), scale, grid), with the same gradients.

    One pass over the values, and one back, where a C++ kernel can do it; else it is that composition.

    >>> x, alpha = paddle.to_tensor([-5.0, 0.6, 3.0]), paddle.to_tensor([2.0], stop_gradient=False)
    >>> y = pact_fake_quantize(x, alpha, paddle.to_tensor([0.5]), parse_grid("int4"))
    >>> y.tolist()
    [-2.0, 0.5, 2.0]
    >>> y.sum().backward()
    >>> alpha.grad.tolist()
    [0.0]
    """
    scale = scale.detach()
    seen_as = fused.layout(x, scale, alpha)
    if seen_as is None:
        return fake_quantize(pact_clip(x, alpha, signed=grid.signed), scale, grid)
    learning = (not x.stop_gradient, not alpha.stop_gradient)
    if paddle.is_grad_enabled() and any(learning):
        return _PactFakeQuantize.apply(x, alpha, scale, grid, seen_as, learning)
    return fused.on_grid(x, scale, grid, seen_as, bound=usable_bound(alpha))


def pact_initial_alpha(x: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
    """The bound to start from: that with the least squared error on this grid for these values.

    1 for a group of zeros, since a bound of 0 would let nothing through; NaN where a value is not finite.

    >>> pact_initial_alpha(paddle.to_tensor([0.0, 3.0]), parse_grid("uint2"), axes=(0,)).tolist()
    [3.0]
    """
    best = parse_observer("mse(50)").range(x, grid, axes)
    return nan_where_not_finite(paddle.where(best > 0, best, paddle.ones_like(best)), best)


class _PactClip(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, signed: bool, learning: tuple[bool, bool]) -> Tensor:
        ctx.save_for_backward(x, usable_bound(alpha))
        ctx.signed, ctx.learning, ctx.version = signed, learning, fused.version(x)
        return clip_to_bound(x, alpha, signed=signed)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, bound = ctx.saved_tensor()
        fused.check_unchanged(x, ctx.version)
        return _gradients(dy, x, bound, ctx.signed, ctx.learning)


class _PactFakeQuantize(PyLayer):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        alpha: Tensor,
        scale: Tensor,
        grid: Grid,
        seen_as: Layout,
        learning: tuple[bool, bool],
    ) -> Tensor:
        bound = usable_bound(alpha)
        ctx.save_for_backward(x, bound, scale)
        ctx.grid, ctx.learning, ctx.version = grid, learning, fused.version(x)
        return fused.on_grid(x, scale, grid, seen_as, bound=bound)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, bound, scale = ctx.saved_tensor()
        fused.check_unchanged(x, ctx.version)
        seen_as = fused.layout_of_gradient(dy, x, scale, bound)
        if seen_as is None:
            signed = ctx.grid.signed
            dy = straight_through(dy, clip_to_bound(x, bound, signed=signed), scale, ctx.grid)
            return *_gradients(dy, x, bound, signed, ctx.learning), None
        gradients = fused.straight_through(
            dy, x, scale, ctx.grid, seen_as, bound=bound, learning=ctx.learning
        )
        return *gradients, None


def _gradients(
    dy: Tensor, x: Tensor, bound: Tensor, signed: bool, learning: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Of `x` and of the bound, with plain operators."""
    x, zero = as_float32(x), paddle.zeros_like(dy)
    above, below = x > bound, x < lower_bound(bound, signed=signed)
    dx = dalpha = None
    if learning[0]:
        dx = paddle.where(above | below, zero, dy)
    if learning[1]:
        pushed = paddle.where(above, dy, zero)
        pushed = paddle.where(below, negate(dy), pushed) if signed else pushed
        dalpha = sum_to_shape(pushed, bound.shape)
    return dx, dalpha
