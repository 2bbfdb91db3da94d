"""Quantizing and its gradients in one pass over memory, by the C++ kernels; plain operators compute the same.

`layout` says whether a tensor can be taken that way: dynamic mode, contiguous fp32 on the CPU, and scales of
one number or one per channel. Results are allocated by Paddle, since matrix products depend in their last
bits on how memory is aligned.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, _C_ops

from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.kernels.library import LARGE, advise_large_pages
from lowbit.kernels.quantization import Layout, Levels, quantize_kernels
from lowbit.numerics.exact import is_float32
from lowbit.numerics.grid import Grid

_CPU = paddle.CPUPlace()
_KINDS = {
    "float32": (paddle.float32, 4),
    "int8": (paddle.int8, 1),
    "uint8": (paddle.uint8, 1),
    "int16": (paddle.int16, 2),
    "int32": (paddle.int32, 4),
}


def new_tensor(shape: Sequence[int], dtype: str = "float32") -> Tensor:
    """A tensor on the CPU whose values are yet to be written, all of them; a large one in large pages.

    >>> list(new_tensor([2, 3]).shape)
    [2, 3]
    """
    # The operator behind paddle.empty, whose checks take five times as long, hundreds of times in a step. All
    # other private operators are called by lowbit.accel.
    kind, bytes_each = _KINDS[dtype]
    tensor = _C_ops.empty(shape, kind, _CPU)
    size = bytes_each * math.prod(shape)
    if size >= LARGE:
        advise_large_pages(tensor.data_ptr(), size)
    return tensor


def memory_of(x: Tensor) -> np.ndarray:
    """The memory of a tensor for which `is_plain_memory` holds.

    >>> x = paddle.zeros([2])
    >>> memory_of(x)[:] = 1
    >>> x.tolist()
    [1.0, 1.0]
    """
    memory: Any = (ctypes.c_float * math.prod(x.shape)).from_address(x.data_ptr())
    return np.frombuffer(memory, np.float32).reshape(x.shape)


def layout(x: Tensor, *scales: Tensor) -> Layout | None:
    """How a kernel sees `x` under these scales (or bounds); None when it is one for plain operators."""
    if not paddle.in_dynamic_mode() or kernels() is None:
        return None
    if not all(is_plain_memory(tensor) for tensor in (x, *scales)):
        return None
    return _layout(tuple(x.shape), *(tuple(scale.shape) for scale in scales))


def layout_of_gradient(dy: Tensor, x: Tensor, *scales: Tensor) -> Layout | None:
    """The same for a backward pass; gradients of gradients are for plain operators, which Paddle records."""
    if paddle.is_grad_enabled() or dy.dtype != paddle.float32:
        return None
    return layout(x, *scales)


def is_plain_memory(x: Tensor) -> bool:
    """Whether a kernel can take the address of its values: contiguous fp32 on the CPU."""
    return is_float32(x) and x.place.is_cpu_place() and x.is_contiguous()


@lru_cache(maxsize=4096)
def _layout(shape: tuple[int, ...], *of_scales: tuple[int, ...]) -> Layout | None:
    if 0 in shape:
        return None
    found = {_channels(shape, own) for own in of_scales}
    return found.pop() if len(found) == 1 else None


def _channels(shape: tuple[int, ...], own: tuple[int, ...]) -> Layout | None:
    """[outer, channels, inner]: the axes of the channels must lie side by side."""
    if len(own) > len(shape):
        return None
    own = (1,) * (len(shape) - len(own)) + own
    axes = [axis for axis, size in enumerate(own) if size != 1]
    if not axes:
        return Layout(1, 1, math.prod(shape))
    first, end = axes[0], axes[-1] + 1
    if own[first:end] != shape[first:end]:
        return None
    return Layout(math.prod(shape[:first]), math.prod(shape[first:end]), math.prod(shape[end:]))


@lru_cache(maxsize=256)
def levels(grid: Grid) -> Levels:
    """The grid as the kernels take it, which round to every integer between its bounds."""
    if not grid.has_every_integer:
        raise ValueError(f"{grid} does not have every integer: the kernel would give others")
    return Levels(grid.lowest, grid.highest, grid.signed)


def on_grid(
    x: Tensor,
    scale: Tensor,
    grid: Grid,
    seen_as: Layout,
    *,
    bound: Tensor | None = None,
    integers: bool = False,
) -> Tensor:
    """`x` clipped at the bound and moved onto the grid, or the integers of that."""
    y = new_tensor(x.shape)
    quantize_kernels().quantize(
        x.data_ptr(),
        y.data_ptr(),
        scale.data_ptr(),
        _address(bound),
        seen_as,
        levels(grid),
        integers=integers,
    )
    return y


class Clipped:
    """Where a quantizer with one scale clipped, a byte per value: all that its gradients need of x."""

    def __init__(self, marks: Tensor) -> None:
        self._marks = marks

    @property
    def is_empty(self) -> bool:
        """Whether no value was clipped: gradients pass unchanged, and a bound gets none."""
        # Of bytes as booleans NumPy finds the first that is not 0 without converting them.
        return not np.from_dlpack(self._marks).view(np.bool_).any()

    def gradients(
        self, dy: Tensor, learning: tuple[bool, bool], *, overwrite: bool = False
    ) -> tuple[Tensor | None, Tensor | None]:
        """Those of x and of a bound, [1], as far as they are learning; `overwrite`: in the memory of dY."""
        of_x, of_bound = learning
        if paddle.is_grad_enabled():  # for gradients of gradients, in operators that Paddle can derive
            nothing, marks = paddle.zeros_like(dy), self._marks
            dx = paddle.where(marks == 0, dy, nothing) if of_x else None
            above, below = (paddle.where(marks == mark, dy, nothing) for mark in (1, -1))
            return dx, (above - below).sum().reshape([1]) if of_bound else None
        dy = dy.contiguous()
        dx = (dy if overwrite else new_tensor(dy.shape)) if of_x else None
        dbound = new_tensor([1]) if of_bound else None
        addresses = dy.data_ptr(), self._marks.data_ptr(), _address(dx), _address(dbound)
        quantize_kernels().marked_grad(*addresses, math.prod(dy.shape))
        return dx, dbound


def on_grid_marked(
    x: Tensor, scale: Tensor, grid: Grid, *, bound: Tensor | None = None, integers: bool = False
) -> tuple[Tensor, Clipped, int]:
    """`on_grid` for one scale, or its integers, a byte each; where it clipped; how many values were NaN."""
    shape = x.shape
    y = new_tensor(shape, "float32" if not integers else "int8" if grid.signed else "uint8")
    marks, at = new_tensor(shape, "int8"), y.data_ptr()
    broken = quantize_kernels().quantize_and_mark(
        *(x.data_ptr(), None if integers else at, at if integers else None, marks.data_ptr()),
        *(scale.data_ptr(), _address(bound), math.prod(shape), levels(grid)),
    )
    return y, Clipped(marks), broken


def straight_through(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    grid: Grid,
    seen_as: Layout,
    *,
    bound: Tensor | None = None,
    learning: tuple[bool, bool] = (True, False),
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of `x` and of the bound, as far as they are learning."""
    dy = dy.contiguous()
    dx = new_tensor(x.shape) if learning[0] else None
    dbound = new_tensor(bound.shape) if learning[1] else None
    quantize_kernels().quantize_grad(
        x.data_ptr(),
        dy.data_ptr(),
        _address(dx),
        scale.data_ptr(),
        _address(bound),
        _address(dbound),
        seen_as,
        levels(grid),
    )
    return dx, dbound


def learned_step(
    dy: Tensor, x: Tensor, step: Tensor, grid: Grid, seen_as: Layout, learning: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """LSQ's gradients of `x` and of the step, the latter not yet multiplied by its pace."""
    dy = dy.contiguous()
    dx = new_tensor(x.shape) if learning[0] else None
    dstep = new_tensor(step.shape) if learning[1] else None
    quantize_kernels().lsq_grad(
        x.data_ptr(), dy.data_ptr(), _address(dx), step.data_ptr(), _address(dstep), seen_as, levels(grid)
    )
    return dx, dstep


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def version(x: Tensor) -> int | None:
    """How often `x` has been changed in place; None in a static program, where nothing is."""
    return x.inplace_version if isinstance(x, Tensor) else None


def check_unchanged(x: Tensor, before: int | None) -> None:
    """An error when a value was overwritten after it was quantized and before its gradient is taken."""
    if version(x) != before:
        raise LowbitError(
            "a tensor was changed in place after a layer had used it: its gradient would be wrong. "
            "Use the operation that gives a new tensor (such as `x + y` instead of `x.add_(y)`)"
        )


def save_for_backward(ctx: Any, *tensors: Tensor) -> None:
    """Save tensors for a PyLayer's backward, with their versions; `saved_unchanged` gives them back."""
    ctx.save_for_backward(*tensors)
    ctx.versions = [version(tensor) for tensor in tensors]


def saved_unchanged(ctx: Any) -> tuple[Tensor, ...]:
    """The saved tensors; an error when one was changed in place since then."""
    for tensor, before in zip(ctx.saved_tensor(), ctx.versions, strict=True):
        check_unchanged(tensor, before)
    return ctx.saved_tensor()
