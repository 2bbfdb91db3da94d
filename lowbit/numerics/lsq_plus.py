"""LSQ+: quantizing with a learned step and a learned offset, on a grid with an integer zero point.

For inputs that are neither symmetric nor non-negative, such as those behind a hard-swish (Bhalgat et al.,
*LSQ+*, 2020). The paper adds the offset in floats. Here it is rounded to whole steps in the forward pass, so
that what is trained is what a file with QuantizeLinear and its zero point computes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.numerics import fused
from lowbit.numerics.exact import add, as_float32, multiply, subtract
from lowbit.numerics.fake_quant import gradient_scale, lsq_gradients, on_grid
from lowbit.numerics.grid import Grid
from lowbit.numerics.scale import SMALLEST_SCALE, at_least_smallest

_SAMPLE = 1 << 14  # values that the first step and offset are found from
_CANDIDATES = np.linspace(1.0, 0.1, 37, dtype=np.float32)


@lru_cache(maxsize=4096)
def asymmetric_grid(bits: int, zero_point: int) -> Grid:
    """2^bits integers, `zero_point` of them below 0. 0 itself is always one of them.

    >>> grid = asymmetric_grid(4, 3)
    >>> grid.lowest, grid.highest
    (-3, 12)
    """
    highest = (1 << bits) - 1
    if not 0 <= zero_point <= highest:
        raise ValueError(f"a zero point of {bits} bits is 0 to {highest}, not {zero_point}")
    return Grid(
        name=f"uint{bits}" if not zero_point else f"uint{bits}-{zero_point}",
        storage="int8" if zero_point else "uint8",
        bits=bits,
        signed=zero_point > 0,
        zero_point=zero_point,
    )


def zero_point_of(step: Tensor, offset: Tensor, bits: int) -> int:
    """The integer that stands for 0 where the lowest value is `offset`: round(-offset / step), kept in bits.

    >>> zero_point_of(paddle.to_tensor([0.5]), paddle.to_tensor([-1.1]), 4)
    2
    """
    used = np.maximum(np.float32(step.item()), np.float32(SMALLEST_SCALE))
    with np.errstate(over="ignore"):
        zero = np.round(-np.float32(offset.item()) / used)
    return 0 if np.isnan(zero) else int(np.clip(zero, 0, (1 << bits) - 1))


def lsq_plus_fake_quantize(
    x: Tensor, step: Tensor, offset: Tensor, bits: int, *, elements: int | None = None
) -> Tensor:
    """`x` on the asymmetric grid of a learned `step` and `offset`, one number each.

    With z the zero point, v = x / step and q = round(v), clipped to -z … 2^bits - 1 - z, the result is
    q * step. Where nothing is clipped the gradient of `x` is 1, that of `step` q - v and that of `offset` 0;
    elsewhere 0, q + z and 1. Those of step and offset are multiplied by 1 / sqrt(elements * (2^bits - 1)).

    >>> step, offset = paddle.to_tensor([0.5], stop_gradient=False), paddle.to_tensor([-1.0])
    >>> lsq_plus_fake_quantize(paddle.to_tensor([-9.0, 0.6, 9.0]), step, offset, 4).tolist()
    [-1.0, 0.5, 6.5]
    """
    grid = asymmetric_grid(bits, zero_point_of(step, offset, bits))
    learning = (not x.stop_gradient, not (step.stop_gradient and offset.stop_gradient))
    if paddle.is_grad_enabled() and any(learning):
        return _LearnedOffset.apply(x, step, offset, grid, elements, learning)
    return on_grid(x, at_least_smallest(as_float32(step)), grid)


class _LearnedOffset(PyLayer):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        step: Tensor,
        offset: Tensor,
        grid: Grid,
        elements: int | None,
        learning: tuple[bool, bool],
    ) -> Tensor:
        used = at_least_smallest(as_float32(step))
        ctx.save_for_backward(x, used)
        ctx.grid, ctx.elements, ctx.learning, ctx.version = grid, elements, learning, fused.version(x)
        ctx.steps = (not step.stop_gradient, not offset.stop_gradient)
        return on_grid(x, used, grid)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, used = ctx.saved_tensor()
        fused.check_unchanged(x, ctx.version)
        dx, dstep = lsq_gradients(dy, x, used, ctx.grid, (True, True))
        if not ctx.learning[1]:
            return dx, None, None
        # dx is dy where nothing was clipped, and 0 elsewhere.
        doffset = subtract(as_float32(dy), as_float32(dx)).sum().reshape(used.shape)
        dstep = add(dstep, multiply(doffset, paddle.full([], float(ctx.grid.zero_point), "float32")))
        scale = gradient_scale(x, used, (1 << ctx.grid.bits) - 1, ctx.elements)
        return (
            dx if ctx.learning[0] else None,
            multiply(dstep, scale) if ctx.steps[0] else None,
            multiply(doffset, scale) if ctx.steps[1] else None,
        )


def lsq_plus_initial(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The step and the offset to start from: of least squared error, on a sample of at most 16,384 values.

    From the smallest and the largest value on, upper, lower and again upper bound are searched.

    >>> step, offset = lsq_plus_initial(paddle.to_tensor([-0.25, 0.0, 3.5]), 4)
    >>> step.item(), offset.item()
    (0.25, -0.25)
    """
    values = as_float32(x.detach()).flatten().numpy()
    if not np.isfinite(values).all():
        return paddle.full([1], math.nan), paddle.full([1], math.nan)
    low, high = min(float(values.min(initial=0)), 0.0), max(float(values.max(initial=0)), 0.0)
    if low == high:
        return paddle.ones([1]), paddle.zeros([1])
    sample = values[:: max(1, values.size // _SAMPLE) | 1]

    def error(low: float, high: float) -> float:
        step = np.float32(max((high - low) / ((1 << bits) - 1), SMALLEST_SCALE))
        zero = np.clip(np.round(-low / step), 0, (1 << bits) - 1)
        q = np.clip(np.round(sample / step), -zero, (1 << bits) - 1 - zero)
        return float(np.square(q * step - sample, dtype=np.float64).sum())

    for end in ("high", "low", "high"):
        if end == "high":
            high = min((float(high * part) for part in _CANDIDATES), key=lambda one: error(low, one))
        else:
            low = min((float(low * part) for part in _CANDIDATES), key=lambda one: error(one, high))
    step = np.float32(max((high - low) / ((1 << bits) - 1), SMALLEST_SCALE))
    return paddle.to_tensor([step], dtype="float32"), paddle.to_tensor([low], dtype="float32")
