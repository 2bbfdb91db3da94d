"""Batch norm of training, with a residual sum and an activation after it in the same pass.

For the backward pass it keeps its input (where that is a product of small integers, in two bytes per
element), two numbers per channel, and a bit per element for a ReLU after a sum. Where a gradient of a
gradient is wanted, backward is made of Paddle's operators, which it can derive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError
from lowbit.kernels.norm import Activation, Norm, norm_kernels
from lowbit.kernels.quantization import Layout
from lowbit.numerics import fused
from lowbit.numerics.fused import new_tensor


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


def takes(
    x: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    other: Tensor | None = None,
) -> bool:
    """Whether `BatchNormNode` can be applied: fp32 in NCHW on the CPU, more than one value per channel.

    What it does not take is for Paddle's own operators.

    >>> takes(paddle.ones([1, 2, 1, 1]), paddle.zeros([2]), paddle.ones([2]), None, None)
    False
    """
    if x.ndim != 4 or 0 in x.shape or not _is_plain(x):
        return False
    channels = x.shape[1]
    if math.prod(x.shape) == channels:  # Paddle returns one value per channel as it is
        return False
    if other is not None and not (_is_plain(other) and other.shape == x.shape):
        return False
    of_channels = [tensor for tensor in (running_mean, running_variance, weight, bias) if tensor is not None]
    return all(_is_plain(t) and t.shape == [channels] and t.is_contiguous() for t in of_channels)


def _is_plain(x: Tensor) -> bool:
    return x.dtype == paddle.float32 and x.place.is_cpu_place()


class BatchNormNode(PyLayer):
    """y = (x - mean) * inverse * weight + bias with the batch's own statistics, + other, after an activation.

    Of tensors that it `takes`; with `other`, the activation is a ReLU or none.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        other: Tensor | None,
        statistics: Statistics,
        activation: Activation,
    ) -> Tensor:
        inputs = (x, weight, bias, other)
        if not takes(x, statistics.running_mean, statistics.running_variance, weight, bias, other):
            raise LowbitError(
                "batch norm in lowbit's kernel: ask `takes` first, and use Paddle's where it says no"
            )
        ctx.given = [tensor is not None for tensor in inputs]
        ctx.learning = [tensor is not None and not tensor.stop_gradient for tensor in inputs]
        x, y = x.contiguous(), new_tensor(x.shape)
        other = None if other is None else other.contiguous()
        # Without a sum before it, what the activation lets through shows in x.
        ctx.bits = new_tensor(_bits_shape(x.shape), "uint8") if activation and other is not None else None
        multiples = None if statistics.scale is None else new_tensor(x.shape, "int16")
        fits = norm_kernels().batch_norm_forward(
            _norm(x.shape, statistics, x, weight, bias, other, activation=activation),
            y.data_ptr(),
            statistics.mean.data_ptr(),
            statistics.inverse.data_ptr(),
            statistics.running_mean.data_ptr(),
            statistics.running_variance.data_ptr(),
            bits=_address(ctx.bits),
            multiples=_address(multiples),
        )
        ctx.multiples = multiples if fits else None
        kept = (None if fits else x, weight, bias)
        ctx.kept = [tensor is not None for tensor in kept]
        fused.save_for_backward(ctx, *(tensor for tensor in kept if tensor is not None))
        ctx.statistics, ctx.activation = statistics, activation
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(fused.saved_unchanged(ctx))
        x, weight, bias = (next(saved) if kept else None for kept in ctx.kept)
        if paddle.is_grad_enabled():
            epsilon = ctx.statistics.epsilon
            if x is None and ctx.learning[0]:
                raise LowbitError(
                    "second-order gradients are not supported for a batch norm after a layer in low precision"
                )
            if x is None:
                scale = ctx.statistics.scale
                x = ctx.multiples.cast("float32") * scale.reshape([*scale.shape, 1, 1])
            if ctx.bits is not None:
                dy = dy * _flags(ctx.bits, dy.shape)
            elif ctx.activation:
                dy = dy * _slope(normalized(x, weight, bias, epsilon), ctx.activation)
            gradients: tuple[Tensor | None, ...] = (*_gradients(x, weight, dy, epsilon), dy.clone())
        else:
            gradients = _by_kernel(ctx, x, weight, bias, dy.contiguous())
        wanted = zip(gradients, ctx.learning, ctx.given, strict=True)
        return tuple(gradient if learns else None for gradient, learns, given in wanted if given)


def _by_kernel(
    ctx: Any, x: Tensor | None, weight: Tensor | None, bias: Tensor | None, dy: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of x, weight, bias and the other, those that are wanted."""
    statistics, (of_x, *of_channels, of_other) = ctx.statistics, ctx.learning
    dx = new_tensor(dy.shape) if of_x else None
    dweight, dbias = (new_tensor(statistics.mean.shape) if learns else None for learns in of_channels)
    dother = new_tensor(dy.shape) if of_other and ctx.activation else None
    norm_kernels().batch_norm_backward(
        _norm(dy.shape, statistics, x, weight, bias, activation=ctx.activation),
        statistics.mean.data_ptr(),
        statistics.inverse.data_ptr(),
        dy.data_ptr(),
        *(_address(gradient) for gradient in (dx, dweight, dbias)),
        dother=_address(dother),
        bits=_address(ctx.bits),
        multiples=_address(ctx.multiples),
    )
    if of_other and dother is None:
        dother = dy.clone()  # not dY itself: Paddle adds further gradients to what is returned, in place
    return dx, dweight, dbias, dother


def _norm(
    shape: Sequence[int],
    statistics: Statistics,
    x: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    other: Tensor | None = None,
    *,
    activation: Activation,
) -> Norm:
    images, channels, *pixels = shape
    return Norm(
        _address(x),
        _address(weight),
        _address(bias),
        Layout(images, channels, math.prod(pixels)),
        statistics.epsilon,
        statistics.momentum,
        _address(other),
        _address(statistics.scale),
        int(activation),
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _slope(z: Tensor, activation: Activation) -> Tensor:
    """An activation's derivative by Paddle's operators: the kernels' twin."""
    if activation == Activation.RELU:
        return (z > 0).cast(z.dtype)
    if activation == Activation.RELU6:
        return ((z > 0) & (z < 6)).cast(z.dtype)
    above, below = (z + 3 > 0).cast(z.dtype), (z + 3 < 6).cast(z.dtype)
    return above * (2 * z + 3) / 6 * below + (1 - below)


def normalized(x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
    """The batch norm of x by Paddle's operators; no running statistics are moved on."""
    others, along = _axes(x)
    centred = x - x.mean(others, keepdim=True)
    y = centred / paddle.sqrt((centred * centred).mean(others, keepdim=True) + epsilon)
    y = y if weight is None else y * weight.reshape(along)
    return y if bias is None else y + bias.reshape(along)


def _axes(x: Tensor) -> tuple[list[int], list[int]]:
    """The axes of a channel's values, and the shape that lays a number per channel along x."""
    return [axis for axis in range(x.ndim) if axis != 1], [1, -1] + [1] * (x.ndim - 2)


def _gradients(x: Tensor, weight: Tensor | None, dy: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """The readable twin of the kernel's backward pass."""
    others, along = _axes(x)
    centred = x - x.mean(others, keepdim=True)
    inverse = 1 / paddle.sqrt((centred * centred).mean(others, keepdim=True) + epsilon)
    normal = centred * inverse
    dx = dy - dy.mean(others, keepdim=True) - normal * (dy * normal).mean(others, keepdim=True)
    gain = inverse if weight is None else inverse * weight.reshape(along)
    return dx * gain, (dy * normal).sum(others), dy.sum(others)


def _bits_shape(shape: Sequence[int]) -> list[int]:
    images, channels, *pixels = shape
    return [images * channels, (math.prod(pixels) + 7) // 8]


def _flags(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """1 where the ReLU let a value through, else 0."""
    flags = np.unpackbits(bits.numpy(), axis=1, count=math.prod(shape[2:]), bitorder="little")
    return paddle.to_tensor(flags.astype(np.float32)).reshape(shape)
