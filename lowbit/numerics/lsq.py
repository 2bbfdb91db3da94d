"""LSQ: fake-quantize with a step (scale) that is learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.numerics import fused
from lowbit.numerics.exact import as_float32, divide, multiply, subtract
from lowbit.numerics.grid import Grid
from lowbit.numerics.groups import shape_of_scales, sum_groups, sum_to_shape
from lowbit.numerics.quantize import on_grid, quantize_to_integers
from lowbit.numerics.scale import SMALLEST_SCALE, at_least_smallest, largest_scale


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


def lsq_initial_step(x: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
    """2 * mean|x| / sqrt(highest) of every group; 1 for a group of zeros, NaN where a value is not finite.

    >>> lsq_initial_step(paddle.to_tensor([1.0, -3.0]), parse_grid("uint2"), axes=(0,)).tolist()
    [2.309401035308838]
    """
    shape = shape_of_scales(x.shape, axes)
    count = max(1, x.size // max(1, math.prod(shape)))
    factor = paddle.full([], 2.0 / (count * math.sqrt(grid.highest)), "float64")
    mean = multiply(sum_groups(paddle.abs(x.detach()), tuple(axes), "float64"), factor)
    step = paddle.clip(mean, SMALLEST_SCALE, largest_scale(grid)).cast("float32")
    step = paddle.where(mean > 0, step, paddle.ones_like(step))
    return paddle.where(paddle.isfinite(mean), step, paddle.full_like(step, float("nan")))


@paddle.jit.not_to_static  # Paddle's translator makes a tensor of a size of -1
def _pace(x: Tensor, step: Tensor, grid: Grid, elements: int | None) -> Tensor:
    if elements is None and -1 in x.shape:  # a static program, whose batch size is known when it runs
        return paddle.rsqrt(paddle.numel(x).cast("float32") * (grid.highest / math.prod(step.shape)))
    shared = elements or max(1, math.prod(x.shape) // math.prod(step.shape))
    return paddle.full([], 1 / math.sqrt(shared * grid.highest), "float32")


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
        seen_as = fused.layout_of_gradient(dy, x, used)
        if seen_as is None:
            dx, dstep = _gradients(dy, x, used, ctx.grid, ctx.learning)
        else:
            dx, dstep = fused.learned_step(dy, x, used, ctx.grid, seen_as, ctx.learning)
        return dx, None if dstep is None else multiply(dstep, _pace(x, used, ctx.grid, ctx.elements))


def _gradients(
    dy: Tensor, x: Tensor, step: Tensor, grid: Grid, learning: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Of `x` and of the step, with plain operators."""
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
