"""Quantize and dequantize, and fake-quantize with gradients: straight-through, LSQ and PACT.

| function | scale or bound | gradient of x |
|---|---|---|
| `fake_quantize` | given | straight through, 0 where x was clipped |
| `lsq_fake_quantize` | the step is learned (LSQ) | 1 inside the grid |
| `pact_clip`, `pact_fake_quantize` | the clipping bound is learned (PACT) | 1 inside the bound |
"""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.kernels.quantization import Layout
from lowbit.numerics import fused
from lowbit.numerics.exact import as_float32, as_type_of, divide, multiply, negate, subtract
from lowbit.numerics.granularity import sum_to_shape
from lowbit.numerics.grid import Grid
from lowbit.numerics.rounding import Rounding, log_round, nearest
from lowbit.numerics.scale import at_least_smallest


def quantize_to_integers(x: Tensor, scale: Tensor, grid: Grid, rounding: Rounding | None = None) -> Tensor:
    """round(x / scale), clipped to the grid; integers held in fp32. No rounding given is `nearest`.

    One fp32 division, so that an integer kernel gives the same integers. NaN gives NaN, and so does a scale
    that is NaN; an infinite value is clipped. Plain operators with `nearest` where they are to be exported or
    to pass a gradient on; one pass of a C++ kernel otherwise, on the CPU.

    >>> scale = paddle.to_tensor([0.5])
    >>> quantize_to_integers(paddle.to_tensor([0.6, -9.0]), scale, parse_grid("int4")).tolist()
    [1.0, -8.0]
    """
    plain = rounding is not None or not grid.has_every_integer or _records_gradients(x, scale)
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
    if grid.midrise:  # the odd integer above the even one below
        return 2 * paddle.floor(clipped * 0.5) + 1
    return nearest(clipped) if rounding is None else rounding(clipped)


def dequantize(q: Tensor, scale: Tensor) -> Tensor:
    """The values of integers: q * scale.

    >>> dequantize(paddle.to_tensor([1.0, -8.0]), paddle.to_tensor([0.5])).tolist()
    [0.5, -4.0]
    """
    return multiply(q, scale)


def fake_quantize(
    x: Tensor, scale: Tensor, grid: Grid, rounding: Rounding | None = None, *, mask: bool = True
) -> Tensor:
    """`x` moved onto the grid: integers times the scale, in the type of `x`.

    The gradient goes straight through, with `mask` only where lowest - 1/2 <= x / scale <= highest + 1/2,
    that is where nothing was clipped. The scale gets none (see `lsq_fake_quantize` for one that learns).

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
    seen_as = fused.layout(x, scale) if rounding is None and grid.has_every_integer else None
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
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not ctx.mask:
            return dy.clone(), None  # Paddle adds further gradients to what is returned, in place
        x, scale = ctx.saved_tensor()
        fused.check_unchanged(x, ctx.version)
        seen_as = fused.layout_of_gradient(dy, x, scale)
        if seen_as is None:
            return straight_through(dy, x, scale, ctx.grid), None
        return fused.straight_through(dy, x, scale, ctx.grid, seen_as)


def lsq_fake_quantize(x: Tensor, step: Tensor, grid: Grid, *, elements: int | None = None) -> Tensor:
    """`x` on the grid with the learned `step`, which is broadcast: one number, or one per channel.

    With v = x / step and q = clip(round(v)), the result is q * step. The gradient of `x` is 1 where
    lowest < v < highest and 0 elsewhere; that of `step` is q - v there and q elsewhere, summed over
    what shares it and multiplied by 1 / sqrt(elements * highest), which keeps its pace with that of
    the weights. `elements` is how many values share a step; left out, it is counted.

    A step below the smallest normal float counts as that. Nearest rounding.

    >>> step = paddle.to_tensor([0.5], stop_gradient=False)
    >>> lsq_fake_quantize(paddle.to_tensor([0.6, -9.0]), step, parse_grid("int4")).tolist()
    [0.5, -4.0]
    """
    learning = (not x.stop_gradient, not step.stop_gradient)
    if paddle.is_grad_enabled() and any(learning):
        return _LearnedStep.apply(x, step, grid, elements, learning)
    return on_grid(x, at_least_smallest(as_float32(step)), grid)


@paddle.jit.not_to_static  # Paddle's translator makes a tensor of a size of -1
def gradient_scale(x: Tensor, step: Tensor, highest: int, elements: int | None) -> Tensor:
    """1 / sqrt(elements * highest), the scale of LSQ's gradients; elements left out are counted."""
    if elements is None and -1 in x.shape:  # a static program, whose batch size is known when it runs
        return paddle.rsqrt(paddle.numel(x).cast("float32") * (highest / math.prod(step.shape)))
    shared = elements or max(1, math.prod(x.shape) // math.prod(step.shape))
    return paddle.full([], 1 / math.sqrt(shared * highest), "float32")


class _LearnedStep(PyLayer):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, step: Tensor, grid: Grid, elements: int | None, learning: tuple[bool, bool]
    ) -> Tensor:
        used = at_least_smallest(as_float32(step))
        ctx.save_for_backward(x, used)
        ctx.grid, ctx.elements, ctx.learning, ctx.version = grid, elements, learning, fused.version(x)
        return on_grid(x, used, grid)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, used = ctx.saved_tensor()
        fused.check_unchanged(x, ctx.version)
        dx, dstep = lsq_gradients(dy, x, used, ctx.grid, ctx.learning)
        if dstep is None:
            return dx, None
        return dx, multiply(dstep, gradient_scale(x, used, ctx.grid.highest, ctx.elements))


def lsq_gradients(
    dy: Tensor, x: Tensor, step: Tensor, grid: Grid, learning: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """LSQ's gradients of `x` and of the step, as far as they are learning; the latter not scaled yet.

    One pass of a C++ kernel, or plain operators.
    """
    seen_as = fused.layout_of_gradient(dy, x, step) if grid.has_every_integer else None
    if seen_as is not None:
        return fused.learned_step(dy, x, step, grid, seen_as, learning)
    v = divide(as_float32(x), step)
    inside = (v > grid.lowest) & (v < grid.highest)
    dx = dstep = None
    if learning[0]:
        dx = paddle.where(inside, dy, paddle.zeros_like(dy))
    if learning[1]:
        q = quantize_to_integers(x, step, grid)
        slope = multiply(as_float32(dy), paddle.where(inside, subtract(q, v), q))
        dstep = sum_to_shape(slope, step.shape)
    return dx, dstep


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
    bound = usable_bound(alpha.detach())
    if paddle.is_grad_enabled() and any(learning):
        return _PactFakeQuantize.apply(x, alpha, scale, grid, seen_as, learning, bound)
    return fused.on_grid(x, scale, grid, seen_as, bound=bound)


def rounded_bound(alpha: Tensor, scale: Tensor, grid: Grid) -> Tensor:
    """A bound that gives the integers of `alpha`, and clips nothing that was clipped at `alpha` and rounded.

    That is `alpha`, or where it or -`alpha` was rounded away from 0, the next magnitude of the grid.

    >>> rounded_bound(paddle.to_tensor([1.8]), paddle.to_tensor([0.5]), parse_grid("int4")).tolist()
    [2.0]
    """
    alpha, scale = usable_bound(alpha.detach()), scale.detach()
    highest, lowest = (on_grid(end, scale, grid) for end in (alpha, -alpha))  # int4 goes from -8 to 7
    return paddle.maximum(alpha, paddle.maximum(highest, -lowest))


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
        return _pact_gradients(dy, x, bound, ctx.signed, ctx.learning)


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
        bound: Tensor,
    ) -> Tensor:
        ctx.learning, ctx.shape = learning, alpha.shape
        if seen_as.channels == 1:
            y, ctx.clipped, _ = fused.on_grid_marked(x, scale, grid, bound=bound)
            return y
        ctx.clipped = None
        ctx.save_for_backward(x, bound, scale)
        ctx.grid, ctx.version = grid, fused.version(x)
        return fused.on_grid(x, scale, grid, seen_as, bound=bound)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        if ctx.clipped is not None:
            dx, dbound = ctx.clipped.gradients(as_float32(dy), ctx.learning)
            if dbound is not None and dbound.shape != ctx.shape:
                dbound = dbound.reshape(ctx.shape)
            return dx, dbound, None, None
        x, bound, scale = ctx.saved_tensor()
        fused.check_unchanged(x, ctx.version)
        seen_as = fused.layout_of_gradient(dy, x, scale, bound)
        if seen_as is None:
            signed = ctx.grid.signed
            dy = straight_through(dy, clip_to_bound(x, bound, signed=signed), scale, ctx.grid)
            return *_pact_gradients(dy, x, bound, signed, ctx.learning), None, None
        gradients = fused.straight_through(
            dy, x, scale, ctx.grid, seen_as, bound=bound, learning=ctx.learning
        )
        return *gradients, None, None


def _pact_gradients(
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


def clip_to_bound(x: Tensor, alpha: Tensor, *, signed: bool) -> Tensor:
    """`x` within [-alpha, alpha], or, unsigned, within [0, alpha]; `alpha` is broadcast. NaN stays NaN.

    >>> clip_to_bound(paddle.to_tensor([-5.0, 1.0, 3.0]), paddle.to_tensor([2.0]), signed=True).tolist()
    [-2.0, 1.0, 2.0]
    """
    bound = usable_bound(alpha)
    clipped = paddle.minimum(paddle.maximum(as_float32(x), lower_bound(bound, signed=signed)), bound)
    return as_type_of(x, clipped)


def usable_bound(alpha: Tensor) -> Tensor:
    """The bound in fp32 and not below the smallest normal float, wherever learning has taken it."""
    return at_least_smallest(as_float32(alpha))


def lower_bound(bound: Tensor, *, signed: bool) -> Tensor:
    """The other end: -bound, or, unsigned, 0."""
    return negate(bound) if signed else paddle.zeros_like(bound)
