"""Quantizing with one scale that follows a moving average of ranges, observed in the same call.

What `MovingAverage` of `scale` and `fake_quantize` compute one after the other, by the C++ kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.kernels.quantization import CObserver, MovingAverage, observer, quantize_kernels
from lowbit.numerics.exact import as_float32
from lowbit.numerics.fused import Clipped, is_plain_memory, levels, new_tensor
from lowbit.numerics.grid import Grid

_STATE = MovingAverage._fields[1:]


@dataclass(frozen=True, eq=False)  # no tuple: Paddle takes the tensors of one for a PyLayer's inputs
class Observed:
    """A quantized tensor: values or integers, its scale, where it was clipped, whether a value was NaN.

    What was clipped is None where somebody else has the gradient.
    """

    data: Tensor
    scale: Tensor
    clipped: Clipped | None
    has_nan: bool


@dataclass(frozen=True, eq=False)
class MovingScale:
    """The scale of one quantizer for one batch, which is yet to be observed.

    grid: that of the integers.
    rate: of the moving average.
    state: its buffers by their names in `MovingAverage`, of one number each on the CPU.
    alpha: PACT's parameter, one number; None without PACT.
    """

    grid: Grid
    rate: float
    state: Mapping[str, Tensor]
    alpha: Tensor | None = None

    def quantize(self, x: Tensor, *, integers: bool = False) -> Observed:
        """Enters the batch `x`, for which `fits` holds, and quantizes it; integers are a byte each."""
        shape, grid = x.shape, self.grid
        scale = new_tensor([1] * len(shape))
        y = new_tensor(shape, "float32" if not integers else "int8" if grid.signed else "uint8")
        marks, at = new_tensor(shape, "int8"), y.data_ptr()
        broken = quantize_kernels().observe_and_mark(
            *(x.data_ptr(), None if integers else at, at if integers else None, marks.data_ptr()),
            *(math.prod(shape), self.for_kernel(scale)),
        )
        return Observed(y, scale, Clipped(marks), bool(broken))

    def for_kernel(self, scale: Tensor) -> CObserver:
        """For a kernel that observes a batch and writes its scale, one number."""
        average = MovingAverage(self.rate, *[self.state[name].data_ptr() for name in _STATE])
        alpha = None if self.alpha is None else self.alpha.data_ptr()
        return observer(alpha, levels(self.grid), average, scale.data_ptr())


def fits(x: Tensor) -> bool:
    """Whether a `MovingScale` can quantize `x`: contiguous fp32 on the CPU, not empty."""
    return is_plain_memory(x) and 0 not in x.shape


def observed_fake_quantize(x: Tensor, by: MovingScale) -> tuple[Tensor, Tensor]:
    """`x`, for which `fits` holds, on the grid, and the scale; gradients as `pact_fake_quantize`."""
    alpha, made = by.alpha, by.quantize(x)
    learning = (not x.stop_gradient, alpha is not None and not alpha.stop_gradient)
    if not (paddle.is_grad_enabled() and any(learning)):
        return made.data, made.scale
    return _FromMarks.apply(x, alpha, made, learning), made.scale


class _FromMarks(PyLayer):
    """What was quantized, with its gradients from where it was clipped."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, alpha: Tensor | None, made: Observed, learning: tuple[bool, bool]
    ) -> Tensor:
        ctx.clipped, ctx.learning, ctx.shape = made.clipped, learning, None if alpha is None else alpha.shape
        return made.data

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...] | Tensor | None:
        dx, dbound = ctx.clipped.gradients(as_float32(dy), ctx.learning)
        if ctx.shape is None:
            return dx
        return dx, dbound if dbound is None or dbound.shape == ctx.shape else dbound.reshape(ctx.shape)
