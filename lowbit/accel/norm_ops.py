"""Batch norm, ReLU, hard swish and pooling of training by lowbit's kernels, instead of Paddle's operators.

Also two steps of known blocks in one pass each: `padded_shortcut` and `channel_product` (`channel_ops`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType
from typing import Any

import paddle
from paddle import Tensor, _C_ops, nn
from paddle.autograd import PyLayer

from lowbit.accel.channel_ops import ChannelMean, ChannelProduct, PaddedShortcut
from lowbit.accel.fused_norm import (
    BatchNormNode,
    IntegerScale,
    NormPass,
    Statistics,
    activation_slope,
    is_plain,
    takes,
    takes_shape,
)
from lowbit.accel.op_overrides import OpOverrides
from lowbit.accel.quantized_norm import QuantizedNormPass
from lowbit.kernels import kernels
from lowbit.kernels.norm import Activation, Pool, norm_kernels
from lowbit.numerics.fused import is_plain_memory, memory_of, new_tensor, save_for_backward, saved_unchanged
from lowbit.numerics.observed import MovingScale


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


class Hardswish(PyLayer):
    """y = relu6(x + 3) * x / 6."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        save_for_backward(ctx, x)
        y = new_tensor(x.shape)
        norm_kernels().hardswish_forward(x.data_ptr(), y.data_ptr(), math.prod(x.shape))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = saved_unchanged(ctx)
        if paddle.is_grad_enabled():
            return dy * activation_slope(x, Activation.HARDSWISH)
        dy, dx = dy.contiguous(), new_tensor(x.shape)
        norm_kernels().hardswish_backward(x.data_ptr(), dy.data_ptr(), dx.data_ptr(), math.prod(x.shape))
        return dx


def _scattered(dy: Tensor, places: Tensor, pool: Pool) -> Tensor:
    """The readable twin of the kernel's backward pass: [planes, pixels]."""
    place = places.cast("int64").reshape([pool.planes, pool.out_height, pool.out_width])
    row = paddle.arange(pool.out_height).reshape([-1, 1]) * pool.stride_h - pool.top + place // pool.kernel_w
    column = paddle.arange(pool.out_width) * pool.stride_w - pool.left + place % pool.kernel_w
    pixels = (row * pool.width + column).reshape([pool.planes, -1])
    nothing = paddle.zeros([pool.planes, pool.height * pool.width])
    return paddle.put_along_axis(nothing, pixels, dy.reshape([pool.planes, -1]), 1, reduce="add")


# Batch norm, ReLU, hard swish and max-pool by lowbit's kernels, in training on a CPU.


SCALE_ATTRIBUTE = "lowbit_scale"  # on a product of small integers: what it may be whole multiples of


@contextmanager
def fast_norm_ops(*, wanted: bool = True) -> Iterator[None]:
    """Inside the `with`, if `wanted`, batch norm, ReLU, hard swish and pooling of training run in lowbit's
    kernels.

    That is batch norm with the batch's statistics, ReLU, hard swish, global average pooling, and max-pools of
    2 or 3 with a stride of 1 or 2, on fp32 tensors in NCHW on the CPU, in this thread. Less time and memory.
    All but batch norm give Paddle's bits; batch norm its results except for the order of sums.
    Everything else is Paddle's own: evaluation, other types, layouts and devices, programs being exported, an
    activation or pool that no gradient is wanted of, a batch norm over one value per channel; and all of it
    where the kernels are missing (lowbit.kernels.why_missing says why).

    with fast_norm_ops():
        loss = criterion(model(images), labels)
        loss.backward()
    """
    if not wanted or kernels() is None:
        yield
        return
    with _OVERRIDES.open():
        yield


def norm_library(*, wanted: bool) -> str:
    """What computes batch norm, ReLU and max-pool on a CPU, for the record of what shapes last bits.

    >>> norm_library(wanted=False)
    'Paddle'
    """
    return "lowbit" if wanted and kernels() is not None else "Paddle"


def _for_training(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for tensors with values and arguments as Paddle's Python code gives them; else None."""

    @functools.wraps(function)
    def checked(x: Any, *arguments: Any, **named: Any) -> Any:
        # A value of a static program is not a Tensor.
        return None if named or not isinstance(x, Tensor) else function(x, *arguments)

    return checked


def _wants_gradient(x: Tensor) -> bool:
    return paddle.is_grad_enabled() and not x.stop_gradient and is_plain(x) and 0 not in x.shape


@_for_training
def _relu(x: Tensor) -> Tensor | None:
    return Relu.apply(x) if _wants_gradient(x) else None


@_for_training
def _hardswish(x: Tensor) -> Tensor | None:
    return Hardswish.apply(x) if _wants_gradient(x) else None


@_for_training
def _batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    is_test: bool,
    momentum: float,
    epsilon: float,
    data_format: str,
    use_global_stats: bool,
    trainable_statistics: bool,
) -> tuple[Tensor, ...] | None:
    """As Paddle's operator: y, both running statistics, those of the batch, and memory that only GPUs use.

    With or without gradients: `recompute` runs a block without them first, and must get the same bits.
    """
    if is_test or use_global_stats or data_format != "NCHW":
        return None
    if not takes(x, running_mean, running_variance, weight, bias):
        return None
    channels = x.shape[1]
    mean, inverse = new_tensor([channels]), new_tensor([channels])
    whole = attached_scale(x) if paddle.is_grad_enabled() else None
    statistics = Statistics(running_mean, running_variance, mean, inverse, epsilon, momentum)
    y = BatchNormNode.apply(x, weight, bias, None, NormPass(statistics, Activation.NONE, whole=whole))
    return y, running_mean, running_variance, mean, inverse, new_tensor([0], "uint8")


@_for_training
def _pool2d(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    exclusive: bool,
    data_format: str,
    kind: str,
    whole: bool,
    adaptive: bool,
    algorithm: str,
) -> Tensor | None:
    if not _wants_gradient(x) or x.ndim != 4 or (data_format, algorithm) != ("NCHW", "EXPLICIT"):
        return None
    if kind == "avg":
        is_global = whole or (adaptive and isinstance(kernel, (list, tuple)) and [*kernel] == [1, 1])
        return ChannelMean.apply(x) if is_global else None
    if kind != "max" or whole or adaptive or not isinstance(kernel, (list, tuple)):
        return None
    pool = _pool(x.shape, kernel, stride, padding, ceil_mode=ceil_mode)
    if pool is None:
        return None
    y = MaxPool.apply(x, pool)
    # Of a window with NaN, or of -Inf alone, Paddle gives another number: it passes over NaN.
    return y if math.isfinite(float(y.detach().sum())) else None


def _pool(
    shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    *,
    ceil_mode: bool,
) -> Pool | None:
    """The windows on images of this shape; None for what the kernels do not have."""
    if not ({*kernel} <= {2, 3} and {*stride} <= {1, 2}):
        return None
    top, bottom, left, right = (
        padding if len(padding) == 4 else (padding[0], padding[0], padding[1], padding[1])
    )
    images, channels, height, width = shape
    out_height = _windows(height, kernel[0], stride[0], top, bottom, ceil_mode=ceil_mode)
    out_width = _windows(width, kernel[1], stride[1], left, right, ceil_mode=ceil_mode)
    if out_height is None or out_width is None:
        return None
    return Pool(images * channels, height, width, out_height, out_width, *kernel, *stride, top, left)


def _windows(size: int, kernel: int, stride: int, before: int, after: int, *, ceil_mode: bool) -> int | None:
    """How many windows there are along an axis; None unless each holds a pixel."""
    rest = size + before + after - kernel
    count = (rest + (stride - 1 if ceil_mode else 0)) // stride + 1
    fits = rest >= 0 and min(before, after) >= 0 and before < kernel and (count - 1) * stride - before < size
    return count if fits else None


def fused_batch_norm(
    norm: nn.BatchNorm2D | nn.BatchNorm,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    activation: Activation = Activation.NONE,
) -> Tensor | None:
    """The batch norm of training, `+ residual`, an activation, as one autograd node; None where it cannot be.

    It runs only inside `fast_norm_ops()` and where the operators it stands for are those of this file: not
    under mixed precision, which wraps them. The running statistics are updated as by the layer itself.
    """
    if not isinstance(x, Tensor) or not is_plain(x):
        return None
    made = norm_pass(norm, x.shape, residual, activation=activation)
    if made is None:
        return None
    learning = (x, norm.weight, norm.bias, residual)
    if all(tensor is None or tensor.stop_gradient for tensor in learning):
        return None
    made.whole = attached_scale(x)
    return BatchNormNode.apply(x, norm.weight, norm.bias, residual, made)


def norm_pass(
    norm: nn.BatchNorm2D | nn.BatchNorm,
    shape: Sequence[int],
    residual: Tensor | None = None,
    *,
    activation: Activation = Activation.NONE,
    before: MovingScale | None = None,
    after: MovingScale | None = None,
) -> NormPass | None:
    """What computes the batch norm of fp32 of this shape, `+ residual`, an activation; None as above.

    `before` and `after` are quantizers around the activation.
    """
    is_quantized = before is not None or after is not None
    if not (norm.training and paddle.is_grad_enabled()):
        return None
    if not (_OVERRIDES.is_called_directly("batch_norm") and _OVERRIDES.is_called_directly("relu")):
        return None
    layout = norm._data_layout if isinstance(norm, nn.BatchNorm) else norm._data_format
    if norm._use_global_stats or layout != "NCHW":
        return None
    if residual is not None and (not isinstance(residual, Tensor) or activation > Activation.RELU):
        return None
    has_kernel = residual is None and QuantizedNormPass.has(activation, before=before is not None)
    if is_quantized and not has_kernel:
        return None
    if activation is Activation.HARDSWISH and not _OVERRIDES.is_called_directly("hardswish"):
        return None
    if activation is Activation.RELU6 and not isinstance(_C_ops.relu6, BuiltinFunctionType):
        return None  # wrapped by someone, whose work we would leave out
    running = norm._mean, norm._variance
    if not takes_shape(shape, *running, norm.weight, norm.bias, residual):
        return None
    channels = shape[1]
    mean, inverse = new_tensor([channels]), new_tensor([channels])
    statistics = Statistics(*running, mean, inverse, norm._epsilon, norm._momentum)
    if is_quantized:
        return QuantizedNormPass(statistics, activation, before, after)
    return NormPass(statistics, activation)


def max_pool_of(layer: nn.MaxPool2D, shape: Sequence[int]) -> Pool | None:
    """The windows of a max-pool layer on images of this shape, if the kernels have them, in this thread."""
    if layer.return_mask or layer.data_format != "NCHW" or not _OVERRIDES.is_called_directly("pool2d"):
        return None
    kernel, stride, padding = (_pair(value) for value in (layer.ksize, layer.stride, layer.padding))
    if kernel is None or stride is None or padding is None:
        return None
    return _pool(shape, kernel, stride, padding, ceil_mode=layer.ceil_mode)


def _pair(value: int | Sequence[int] | str | None) -> tuple[int, int] | None:
    """One number per axis of an image; None for what is not written as one or two numbers."""
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(n, int) for n in pair):
        return None
    return pair[0], pair[1]


def padded_shortcut(x: Tensor, stride: int, zero_channels: int) -> Tensor | None:
    """Every `stride`-th pixel of x between channels of zeros; None where Paddle's operators have to do it.

    >>> padded_shortcut(paddle.ones([1, 2, 4, 4]), 2, 1) is None  # outside of fast_norm_ops
    True
    """
    if not (_OVERRIDES.is_called_directly("relu") and isinstance(x, Tensor) and is_plain(x)):
        return None
    return None if 0 in x.shape else PaddedShortcut.apply(x, stride, zero_channels)


def channel_product(scale: Tensor, x: Tensor) -> Tensor | None:
    """`scale * x` with one scale per channel of each image; None where Paddle's operator has to do it.

    The result and both gradients have Paddle's bits, many times faster than its own broadcasting.
    """
    if not _OVERRIDES.is_called_directly("relu"):
        return None
    if not all(isinstance(one, Tensor) and is_plain(one) and one.ndim == 4 for one in (scale, x)):
        return None
    if 0 in x.shape or scale.shape != [*x.shape[:2], 1, 1]:
        return None
    return ChannelProduct.apply(scale, x)


def gates_are_replaced() -> bool:
    """Whether means, ReLU and `channel_product` are lowbit's now, and a hard sigmoid has no wrapper."""
    ours = all(_OVERRIDES.is_called_directly(name) for name in ("pool2d", "relu"))
    return ours and isinstance(_C_ops.hardsigmoid, BuiltinFunctionType)


def attached_scale(y: Tensor) -> IntegerScale | None:
    """The scale of every channel of every image, if Y, a product of integers, has one.

    Callers must verify it.
    """
    attached = getattr(y, SCALE_ATTRIBUTE, None)
    if attached is None or y.ndim != 4:
        return None
    scale, has_high_bits = attached
    each = y.shape[:2]
    if scale.shape[2:] != [1, 1]:
        return None  # of another layout, such as a Linear layer's
    if any(own not in (1, size) for own, size in zip(scale.shape[:2], each, strict=True)):
        return None  # Y was reshaped in place
    return IntegerScale(scale_of_rows(scale, each), has_high_bits)


def scale_of_rows(scale: Tensor, each: Sequence[int]) -> Tensor:
    """A scale that is broadcast along images and channels, [1, channels, 1, 1] for one, as [*each, 1, 1]."""
    shape = [*each, 1, 1]
    if not is_plain_memory(scale):
        return paddle.expand(scale, shape).contiguous()
    if scale.shape == shape:
        return scale
    rows = new_tensor(shape)
    memory_of(rows)[:] = memory_of(scale)
    return rows


_OVERRIDES = OpOverrides(
    {"batch_norm": _batch_norm, "relu": _relu, "hardswish": _hardswish, "pool2d": _pool2d}
)


def batch_norm_operator(*arguments: Any) -> tuple[Tensor, ...]:
    """Paddle's operator behind every batch norm, or what stands in its place, with its own arguments."""
    return _C_ops.batch_norm(*arguments)
