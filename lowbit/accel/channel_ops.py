"""Steps of known blocks in one pass each: ResNet20's shortcut, and squeeze-and-excitation's mean and product.

As autograd nodes; `norm_ops` has the functions that choose them or Paddle's operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.kernels.norm import Shortcut, norm_kernels
from lowbit.numerics.fused import new_tensor, save_for_backward, saved_unchanged


class PaddedShortcut(PyLayer):
    """Every `stride`-th pixel of x, between channels of zeros: ResNet20's shortcut, in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int, zero_channels: int) -> Tensor:
        ctx.of = Shortcut(*x.shape, stride, zero_channels)
        x = x.contiguous()
        height, width = (-(-side // stride) for side in x.shape[2:])
        y = new_tensor([x.shape[0], x.shape[1] + 2 * zero_channels, height, width])
        norm_kernels().shortcut_forward(x.data_ptr(), y.data_ptr(), ctx.of)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        of = ctx.of
        if paddle.is_grad_enabled():
            own = dy[:, of.zero_channels : of.zero_channels + of.channels]
            return _spread(own, of[:4], of.stride)
        dy, dx = dy.contiguous(), new_tensor(of[:4])
        norm_kernels().shortcut_backward(dy.data_ptr(), dx.data_ptr(), of)
        return dx


class ChannelProduct(PyLayer):
    """x times one number per channel of each image, as in squeeze-and-excitation."""

    @staticmethod
    def forward(ctx: Any, scale: Tensor, x: Tensor) -> Tensor:
        scale, x = scale.contiguous(), x.contiguous()
        save_for_backward(ctx, scale, x)
        y = new_tensor(x.shape)
        norm_kernels().channel_product_forward(x.data_ptr(), scale.data_ptr(), y.data_ptr(), *_rows(x.shape))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        scale, x = saved_unchanged(ctx)
        if paddle.is_grad_enabled():
            return (dy * x).sum([2, 3], keepdim=True), dy * scale
        dy, dscale, dx = dy.contiguous(), new_tensor(scale.shape), new_tensor(x.shape)
        addresses = (tensor.data_ptr() for tensor in (x, scale, dy, dx, dscale))
        norm_kernels().channel_product_backward(*addresses, *_rows(x.shape))
        return dscale, dx


class ChannelMean(PyLayer):
    """The mean of every channel of each image, [images, channels, 1, 1]: global average pooling."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.shape = x.shape
        y = new_tensor([*x.shape[:2], 1, 1])
        norm_kernels().channel_mean_forward(x.data_ptr(), y.data_ptr(), *_rows(ctx.shape))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        if paddle.is_grad_enabled():
            return paddle.expand(dy / math.prod(ctx.shape[2:]), ctx.shape)
        dy, dx = dy.contiguous(), new_tensor(ctx.shape)
        norm_kernels().channel_mean_backward(dy.data_ptr(), dx.data_ptr(), *_rows(ctx.shape))
        return dx


def _rows(shape: Sequence[int]) -> tuple[int, int]:
    """The channels of all images, and the pixels of each."""
    images, channels, *pixels = shape
    return images * channels, math.prod(pixels)


def _spread(pixels: Tensor, shape: Sequence[int], stride: int) -> Tensor:
    """The readable twin of the backward pass: zeros between the pixels, in operators with gradients."""
    for axis in (2, 3):
        pixels = pixels.unsqueeze(axis + 1)
        between = list(pixels.shape)
        between[axis + 1] = stride - 1
        pixels = paddle.concat([pixels, paddle.zeros(between)], axis + 1).flatten(axis, axis + 1)
    return pixels[:, :, : shape[2], : shape[3]]
