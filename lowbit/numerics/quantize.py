"""Quantize: from values to integers and back, and both at once with a gradient that goes straight through."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.numerics import fused
from lowbit.numerics.exact import as_float32, as_type_of, divide, multiply
from lowbit.numerics.grid import Grid
from lowbit.numerics.log_grid import log_round
from lowbit.numerics.rounding import Rounding, nearest


def quantize_to_integers(x: Tensor, scale: Tensor, grid: Grid, rounding: Rounding | None = None) -> Tensor:
    """round(x / scale), clipped to the grid; integers held in fp32. No rounding given is `nearest`.

    One fp32 division, so that an integer kernel gives the same integers. NaN gives NaN, and so does a scale
    that is NaN; an infinite value is clipped. Plain operators with `nearest` where they are to be exported or
    to pass a gradient on; one pass of a C++ kernel otherwise, on the CPU.

    >>> scale = paddle.to_tensor([0.5])
    >>> quantize_to_integers(paddle.to_tensor([0.6, -9.0]), scale, parse_grid("int4")).tolist()
    [1.0, -8.0]
    """
    plain = rounding is not None or grid.logarithmic or _records_gradients(x, scale)
    seen_as = None if plain else fused.layout(x, scale)
    if seen_as is not None:
        return fused.on_grid(x, scale, grid, seen_as, integers=True)
    return _round_inside(divide(as_float32(x), scale), grid, rounding)


@paddle.jit.not_to_static
def _records_gradients(*tensors: Tensor) -> bool:
    return paddle.is_grad_enabled() and not all(tensor.stop_gradient for tensor in tensors)


def _round_inside(quotient: Tensor, grid: Grid, rounding: Rounding | None) -> Tensor:
    # Clipped first, which comes to the same since the bounds are integers, and spares rounding Inf.
    clipped = paddle.clip(quotient, float(grid.lowest), float(grid.highest))
    if grid.logarithmic:
        return log_round(clipped, rounding or nearest)
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

    Without a gradient to record (evaluation under `paddle.no_grad`, export) nothing is: in a static program
    these are plain operators, which `paddle.jit.save` carries into the served one.

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
    return on_grid(x, scale, grid, rounding)


def on_grid(x: Tensor, scale: Tensor, grid: Grid, rounding: Rounding | None = None) -> Tensor:
    """What fake_quantize computes, without the gradient: one pass of a C++ kernel, or plain operators."""
    seen_as = fused.layout(x, scale) if rounding is None and not grid.logarithmic else None
    if seen_as is not None:
        return fused.on_grid(x, scale, grid, seen_as)
    q = _round_inside(divide(as_float32(x), scale), grid, rounding)
    return as_type_of(x, dequantize(q, scale))


def straight_through(dy: Tensor, x: Tensor, scale: Tensor, grid: Grid) -> Tensor:
    """The gradient of fake_quantize with `mask`: `dy` where nothing was clipped, plain operators."""
    quotient = divide(as_float32(x), scale)
    inside = (quotient >= grid.lowest - 0.5) & (quotient <= grid.highest + 0.5)
    return paddle.where(inside, dy, paddle.zeros_like(dy))


class _StraightThrough(PyLayer):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, grid: Grid, rounding: Rounding | None, mask: bool
    ) -> Tensor:
        if mask:
            ctx.save_for_backward(x, scale)
        ctx.grid, ctx.mask, ctx.version = grid, mask, fused.version(x)
        return on_grid(x, scale, grid, rounding)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        if not ctx.mask:
            return dy.clone(), None  # Paddle adds further gradients to what is returned, in place
        x, scale = ctx.saved_tensor()
        fused.check_unchanged(x, ctx.version)
        seen_as = fused.layout_of_gradient(dy, x, scale)
        if seen_as is None:
            return straight_through(dy, x, scale, ctx.grid), None
        return fused.straight_through(dy, x, scale, ctx.grid, seen_as)
