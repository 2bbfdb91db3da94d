"""PACT: clipping at a bound that is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.numerics.exact import as_float32, as_type_of, negate
from lowbit.numerics.grid import Grid
from lowbit.numerics.groups import sum_to_shape
from lowbit.numerics.observers import parse_observer
from lowbit.numerics.scale import at_least_smallest, nan_where_not_finite


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
    return _clip(x, at_least_smallest(as_float32(alpha)), signed)


def pact_initial_alpha(x: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
    """The bound to start from: that with the least squared error on this grid for these values.

    1 for a group of zeros, since a bound of 0 would let nothing through; NaN where a value is not finite.

    >>> pact_initial_alpha(paddle.to_tensor([0.0, 3.0]), parse_grid("uint2"), axes=(0,)).tolist()
    [3.0]
    """
    best = parse_observer("mse(50)").range(x, grid, axes)
    return nan_where_not_finite(paddle.where(best > 0, best, paddle.ones_like(best)), best)


def _clip(x: Tensor, alpha: Tensor, signed: bool) -> Tensor:
    clipped = paddle.minimum(paddle.maximum(as_float32(x), _lower(alpha, signed)), alpha)
    return as_type_of(x, clipped)


def _lower(alpha: Tensor, signed: bool) -> Tensor:
    return negate(alpha) if signed else paddle.zeros_like(alpha)


class _PactClip(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, signed: bool, learning: tuple[bool, bool]) -> Tensor:
        bound = at_least_smallest(as_float32(alpha))
        ctx.save_for_backward(x, bound)
        ctx.signed, ctx.learning = signed, learning
        return _clip(x, bound, signed)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, bound = ctx.saved_tensor()
        x, zero = as_float32(x), paddle.zeros_like(dy)
        above, below = x > bound, x < _lower(bound, ctx.signed)
        dx = dalpha = None
        if ctx.learning[0]:
            dx = paddle.where(above | below, zero, dy)
        if ctx.learning[1]:
            pushed = paddle.where(above, dy, zero)
            pushed = paddle.where(below, negate(dy), pushed) if ctx.signed else pushed
            dalpha = sum_to_shape(pushed, bound.shape)
        return dx, dalpha
