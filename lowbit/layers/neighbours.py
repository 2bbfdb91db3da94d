"""Batch norm, ReLU and max-pool of training as operators that keep little for the backward pass.

Batch norm keeps its input (where that is a product of small integers, in two bytes per element) and two
numbers per channel, ReLU a bit per element (Paddle: its output), the max-pool a byte per output (Paddle: its
input and output). Where a gradient of a gradient is wanted, backward is made of Paddle's operators, which it
can derive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError
from lowbit.kernels.library import Layout
from lowbit.kernels.neighbours import Norm, Pool, neighbours
from lowbit.numerics import fused
from lowbit.numerics.new_tensor import new_tensor


@dataclass(frozen=True, eq=False)
class Statistics:
    """A batch norm's settings, the running statistics that it moves on, and those of the batch, written."""

    running_mean: Tensor
    running_variance: Tensor
    mean: Tensor
    inverse: Tensor  # 1 / deviation
    epsilon: float
    momentum: float
    scale: Tensor | None = None  # what the input may be whole multiples of, [images, channels]


class BatchNorm(PyLayer):
    """y = (x - mean) * inverse * weight + bias with the batch's own statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: Statistics,
        learning: tuple[bool, bool, bool],
    ) -> Tensor:
        x, y = x.contiguous(), new_tensor(x.shape)
        multiples = None if statistics.scale is None else new_tensor(x.shape, "int16")
        fits = neighbours().batch_norm_forward(
            _norm(x.shape, (x, weight, bias), statistics),
            y.data_ptr(),
            statistics.mean.data_ptr(),
            statistics.inverse.data_ptr(),
            statistics.running_mean.data_ptr(),
            statistics.running_variance.data_ptr(),
            _address(multiples),
        )
        ctx.multiples = multiples if fits else None
        ctx.save_for_backward(*(tensor for tensor in (None if fits else x, weight) if tensor is not None))
        ctx.versions = [fused.version(tensor) for tensor in ctx.saved_tensor()]
        ctx.statistics, ctx.learning = statistics, learning
        ctx.given = (True, weight is not None, bias is not None)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        saved, statistics = list(ctx.saved_tensor()), ctx.statistics
        for tensor, version in zip(saved, ctx.versions, strict=True):
            fused.check_unchanged(tensor, version)
        x = saved.pop(0) if ctx.multiples is None else None
        weight = saved.pop() if saved else None
        if paddle.is_grad_enabled():
            if x is None:
                raise LowbitError(
                    "there are no gradients of gradients through a batch norm behind a layer in low precision"
                )
            dx, dweight, dbias = _batch_norm_gradients(x, weight, dy, statistics.epsilon)
        else:
            dy = dy.contiguous()
            dx = new_tensor(dy.shape) if ctx.learning[0] else None
            dweight, dbias = (
                paddle.empty_like(statistics.mean) if learns else None for learns in ctx.learning[1:]
            )
            neighbours().batch_norm_backward(
                _norm(dy.shape, (x, weight, None), statistics),
                statistics.mean.data_ptr(),
                statistics.inverse.data_ptr(),
                dy.data_ptr(),
                *(_address(gradient) for gradient in (dx, dweight, dbias)),
                _address(ctx.multiples),
            )
        gradients = zip((dx, dweight, dbias), ctx.learning, ctx.given, strict=True)
        return tuple(gradient if learns else None for gradient, learns, given in gradients if given)


def _norm(shape: Sequence[int], tensors: tuple[Tensor | None, ...], statistics: Statistics) -> Norm:
    """`tensors` are x, weight and bias."""
    images, channels, *pixels = shape
    layout = Layout(images, channels, math.prod(pixels))
    addresses = (_address(tensor) for tensor in (*tensors, statistics.scale))
    return Norm(*addresses, layout, statistics.epsilon, statistics.momentum)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _batch_norm_gradients(
    x: Tensor, weight: Tensor | None, dy: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The readable twin of the kernel's backward pass."""
    others = [axis for axis in range(x.ndim) if axis != 1]
    along = [1, -1] + [1] * (x.ndim - 2)
    centred = x - x.mean(others, keepdim=True)
    inverse = 1 / paddle.sqrt((centred * centred).mean(others, keepdim=True) + epsilon)
    normal = centred * inverse
    dx = dy - dy.mean(others, keepdim=True) - normal * (dy * normal).mean(others, keepdim=True)
    gain = inverse if weight is None else inverse * weight.reshape(along)
    return dx * gain, (dy * normal).sum(others), dy.sum(others)


class Relu(PyLayer):
    """y = max(x, 0)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        y, ctx.bits = new_tensor(x.shape), paddle.empty([(x.size + 7) // 8], "uint8")
        neighbours().relu_forward(x.data_ptr(), y.data_ptr(), ctx.bits.data_ptr(), x.size)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        if paddle.is_grad_enabled():
            return dy * _where_bits(paddle.ones_like(dy), ctx.bits)
        return _where_bits(dy.contiguous(), ctx.bits)


def _where_bits(dy: Tensor, bits: Tensor) -> Tensor:
    dx = new_tensor(dy.shape)
    neighbours().relu_backward(dy.data_ptr(), bits.data_ptr(), dx.data_ptr(), dy.size)
    return dx


class MaxPool(PyLayer):
    """The largest of every window."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: Pool) -> Tensor:
        x = x.contiguous()
        shape = [*x.shape[:2], pool.out_height, pool.out_width]
        y, ctx.places = new_tensor(shape), new_tensor(shape, "uint8")
        ctx.pool, ctx.shape = pool, x.shape
        neighbours().max_pool_forward(x.data_ptr(), y.data_ptr(), ctx.places.data_ptr(), pool)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        if paddle.is_grad_enabled():
            return _scattered(dy, ctx.places, ctx.pool).reshape(ctx.shape)
        dy, dx = dy.contiguous(), new_tensor(ctx.shape)
        neighbours().max_pool_backward(dy.data_ptr(), ctx.places.data_ptr(), dx.data_ptr(), ctx.pool)
        return dx


def _scattered(dy: Tensor, places: Tensor, pool: Pool) -> Tensor:
    """The readable twin of the kernel's backward pass: [planes, pixels]."""
    place = places.cast("int64").reshape([pool.planes, pool.out_height, pool.out_width])
    row = paddle.arange(pool.out_height).reshape([-1, 1]) * pool.stride_h - pool.top + place // pool.kernel_w
    column = paddle.arange(pool.out_width) * pool.stride_w - pool.left + place % pool.kernel_w
    pixels = (row * pool.width + column).reshape([pool.planes, -1])
    nothing = paddle.zeros([pool.planes, pool.height * pool.width])
    return paddle.put_along_axis(nothing, pixels, dy.reshape([pool.planes, -1]), 1, reduce="add")
