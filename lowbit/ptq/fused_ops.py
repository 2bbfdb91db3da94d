"""The operators that take most of a block's training, in one pass each; plain operators are their twins."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.kernels.quantization import Draw, Layout, quantize_kernels
from lowbit.numerics import Grid, lsq_fake_quantize
from lowbit.numerics import fused as kernel_calls
from lowbit.numerics.fused import new_tensor
from lowbit.numerics.rounding import RANDOM_BITS, random_integers
from lowbit.numerics.scale import at_least_smallest


def drop_quantize(x: Tensor, step: Tensor, grid: Grid, drop: float, draw: Draw) -> Tensor:
    """`x` on the grid with the learned `step`, but for a random share `drop` of the values, which stay.

    Which ones is a function of the draw and of their places. The gradients are LSQ's, but not scaled to the
    pace of the weights: Adam does not depend on it.

    >>> step = paddle.to_tensor([0.5], stop_gradient=False)
    >>> drop_quantize(paddle.to_tensor([0.6, -9.0]), step, parse_grid("int4"), 0.0, Draw(0, 0, 0)).tolist()
    [0.5, -4.0]
    """
    threshold = round(drop * (1 << RANDOM_BITS))
    seen_as = kernel_calls.layout(x, step)
    if seen_as is None or x.size >= 1 << 32:
        return _drop_quantize_twin(x, step, grid, threshold, draw)
    return _DropQuantize.apply(x, step, grid, threshold, draw, seen_as)


def _drop_quantize_twin(x: Tensor, step: Tensor, grid: Grid, threshold: int, draw: Draw) -> Tensor:
    stays = random_integers(x.size, seed=draw.seed, step=draw.step, layer=draw.layer) < threshold
    on_grid = lsq_fake_quantize(x, step, grid, elements=1)
    return paddle.where(paddle.to_tensor(stays.reshape(x.shape)), x, on_grid)


class _DropQuantize(PyLayer):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, step: Tensor, grid: Grid, threshold: int, draw: Draw, seen_as: Layout
    ) -> Tensor:
        used = at_least_smallest(step.detach())
        ctx.save_for_backward(x, used)
        ctx.rest = grid, threshold, draw, seen_as
        ctx.learning = not x.stop_gradient, not step.stop_gradient
        y = new_tensor(x.shape)
        quantize_kernels().drop_quantize(
            x.data_ptr(),
            y.data_ptr(),
            used.data_ptr(),
            seen_as,
            kernel_calls.levels(grid),
            draw,
            threshold,
        )
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, step = ctx.saved_tensor()
        grid, threshold, draw, seen_as = ctx.rest
        dy = dy.contiguous()
        dx, dstep = new_tensor(x.shape), new_tensor(step.shape)
        quantize_kernels().drop_lsq_grad(
            x.data_ptr(),
            dy.data_ptr(),
            dx.data_ptr(),
            step.data_ptr(),
            dstep.data_ptr(),
            seen_as,
            kernel_calls.levels(grid),
            draw,
            threshold,
        )
        return dx if ctx.learning[0] else None, dstep if ctx.learning[1] else None


def shift_channels(x: Tensor, shift: Tensor, axis: int) -> Tensor:
    """`x` with a number added to every channel, the channels along `axis`.

    >>> shift_channels(paddle.zeros([1, 2, 2]), paddle.to_tensor([1.0, 2.0]), 1).tolist()
    [[[1.0, 1.0], [2.0, 2.0]]]
    """
    shape = [-1] + [1] * (x.ndim - 1 - axis % x.ndim)
    along = shift.reshape(shape)
    seen_as = kernel_calls.layout(x, along)
    return x + along if seen_as is None else _ShiftChannels.apply(x, shift, seen_as)


class _ShiftChannels(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, seen_as: Layout) -> Tensor:
        ctx.seen_as, ctx.shape = seen_as, shift.shape
        ctx.learning = not x.stop_gradient, not shift.stop_gradient
        y = new_tensor(x.shape)
        quantize_kernels().shift_channels(x.data_ptr(), y.data_ptr(), shift.data_ptr(), seen_as)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        dy = dy.contiguous()
        total = new_tensor(ctx.shape)
        quantize_kernels().channel_sums(dy.data_ptr(), total.data_ptr(), ctx.seen_as)
        # A copy, since Paddle adds further gradients to what is returned, in place.
        return dy.clone() if ctx.learning[0] else None, total if ctx.learning[1] else None
