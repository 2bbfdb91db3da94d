"""ReLU and max-pool of training as operators that keep little for the backward pass.

ReLU keeps a bit per element (Paddle: its output), the max-pool a byte per output (Paddle: its input and
output). Where a gradient of a gradient is wanted, backward is made of Paddle's operators, which it can
derive.
"""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.kernels.norm import Pool, norm_kernels
from lowbit.numerics.fused import new_tensor


class Relu(PyLayer):
    """y = max(x, 0)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        count = math.prod(x.shape)
        y, ctx.bits = new_tensor(x.shape), new_tensor([(count + 7) // 8], "uint8")
        norm_kernels().relu_forward(x.data_ptr(), y.data_ptr(), ctx.bits.data_ptr(), count)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        if paddle.is_grad_enabled():
            return dy * _where_bits(paddle.ones_like(dy), ctx.bits)
        return _where_bits(dy.contiguous(), ctx.bits)


def _where_bits(dy: Tensor, bits: Tensor) -> Tensor:
    dx = new_tensor(dy.shape)
    norm_kernels().relu_backward(dy.data_ptr(), bits.data_ptr(), dx.data_ptr(), math.prod(dy.shape))
    return dx


class MaxPool(PyLayer):
    """The largest of every window."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: Pool) -> Tensor:
        x = x.contiguous()
        shape = [*x.shape[:2], pool.out_height, pool.out_width]
        y, ctx.places = new_tensor(shape), new_tensor(shape, "uint8")
        ctx.pool, ctx.shape = pool, x.shape
        norm_kernels().max_pool_forward(x.data_ptr(), y.data_ptr(), ctx.places.data_ptr(), pool)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        if paddle.is_grad_enabled():
            return _scattered(dy, ctx.places, ctx.pool).reshape(ctx.shape)
        dy, dx = dy.contiguous(), new_tensor(ctx.shape)
        norm_kernels().max_pool_backward(dy.data_ptr(), ctx.places.data_ptr(), dx.data_ptr(), ctx.pool)
        return dx


def _scattered(dy: Tensor, places: Tensor, pool: Pool) -> Tensor:
    """The readable twin of the kernel's backward pass: [planes, pixels]."""
    place = places.cast("int64").reshape([pool.planes, pool.out_height, pool.out_width])
    row = paddle.arange(pool.out_height).reshape([-1, 1]) * pool.stride_h - pool.top + place // pool.kernel_w
    column = paddle.arange(pool.out_width) * pool.stride_w - pool.left + place % pool.kernel_w
    pixels = (row * pool.width + column).reshape([pool.planes, -1])
    nothing = paddle.zeros([pool.planes, pool.height * pool.width])
    return paddle.put_along_axis(nothing, pixels, dy.reshape([pool.planes, -1]), 1, reduce="add")
