"""Quantize: from values to integers and back, and both at once with a gradient that goes straight through."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.numerics.exact import as_float32, as_type_of, divide, multiply
from lowbit.numerics.grid import Grid
from lowbit.numerics.rounding import Rounding, nearest


def quantize_to_integers(x: Tensor, scale: Tensor, grid: Grid, rounding: Rounding | None = None) -> Tensor:
    """round(x / scale), clipped to the grid; integers held in fp32. No rounding given is `nearest`.

    One fp32 division, so that an integer kernel gives the same integers. NaN gives NaN, and so does a scale
    that is NaN; an infinite value is clipped. Plain operators with `nearest`: they can be exported.

    >>> scale = paddle.to_tensor([0.5])
    >>> quantize_to_integers(paddle.to_tensor([0.6, -9.0]), scale, parse_grid("int4")).tolist()
    [1.0, -8.0]
    """
    return _round_inside(divide(as_float32(x), scale), grid, rounding)


def _round_inside(quotient: Tensor, grid: Grid, rounding: Rounding | None) -> Tensor:
    # Clipped first, which comes to the same since the bounds are integers, and spares rounding Inf.
    clipped = paddle.clip(quotient, float(grid.lowest), float(grid.highest))
    return nearest(clipped) if rounding is None else rounding(clipped)


def dequantize(q: Tensor, scale: Tensor) -> Tensor:
    """The values that integers stand for: q * scale.

    >>> dequantize(paddle.to_tensor([1.0, -8.0]), paddle.to_tensor([0.5])).tolist()
    [0.5, -4.0]
    """
    return multiply(q, scale)


def fake_quantize(
    x: Tensor, scale: Tensor, grid: Grid, rounding: Rounding | None = None, *, mask: bool = True
) -> Tensor:
    """`x` moved onto the grid: integers times the scale, in the type of `x`.

    The gradient goes straight through, with `mask` only where lowest - 1/2 <= x / scale <= highest + 1/2,
    that is where nothing was clipped. The scale gets none (see lowbit.numerics.lsq for one that learns).

    Without a gradient to record (evaluation under `paddle.no_grad`, export) these are plain operators, which
    `paddle.jit.save` carries into the served program.

    >>> x = paddle.to_tensor([0.6, -9.0], stop_gradient=False)
    >>> y = fake_quantize(x, paddle.to_tensor([0.5]), parse_grid("int4"))
    >>> y.tolist()
    [0.5, -4.0]
    >>> y.sum().backward()
    >>> x.grad.tolist()
    [1.0, 0.0]
    """
    if paddle.is_grad_enabled() and not x.stop_gradient:
        return _StraightThrough.apply(x, scale.detach(), grid, rounding, mask)
    return as_type_of(x, dequantize(quantize_to_integers(x, scale, grid, rounding), scale))


class _StraightThrough(PyLayer):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, grid: Grid, rounding: Rounding | None, mask: bool
    ) -> Tensor:
        quotient = divide(as_float32(x), scale)
        if mask:
            ctx.save_for_backward((quotient >= grid.lowest - 0.5) & (quotient <= grid.highest + 0.5))
        ctx.mask = mask
        return as_type_of(x, dequantize(_round_inside(quotient, grid, rounding), scale))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        if not ctx.mask:
            return dy, None
        (inside,) = ctx.saved_tensor()
        return paddle.where(inside, dy, paddle.zeros_like(dy)), None
