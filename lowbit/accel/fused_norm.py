"""Batch norm of training, with a residual sum and an activation after it in the same pass.

For the backward pass it keeps its input (where that is a product of small integers, in two or three bytes per
element), two numbers per channel, and a bit per element for a ReLU after a sum. Where a gradient of a
gradient is wanted, backward is made of Paddle's operators, which it can derive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError
from lowbit.kernels.gemm import Multiples
from lowbit.kernels.norm import Activation, Norm, Pool, norm_kernels
from lowbit.kernels.quantization import Layout
from lowbit.numerics import fused
from lowbit.numerics.exact import is_float32
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


class IntegerScale(NamedTuple):
    """What a batch norm's input may be whole multiples of; the kernel verifies it."""

    scale: Tensor  # [images, channels, 1, 1]
    has_high_bits: bool  # whether 16 bits may be too few for the multiples


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
    return is_plain(x) and takes_shape(x.shape, running_mean, running_variance, weight, bias, other)


def takes_shape(
    shape: Sequence[int],
    running_mean: Tensor,
    running_variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    other: Tensor | None = None,
) -> bool:
    """The same for fp32 on the CPU of this shape."""
    if len(shape) != 4 or 0 in shape:
        return False
    channels = shape[1]
    if math.prod(shape) == channels:  # Paddle returns one value per channel as it is
        return False
    if other is not None and not (is_plain(other) and other.shape == list(shape)):
        return False
    of_channels = [tensor for tensor in (running_mean, running_variance, weight, bias) if tensor is not None]
    return all(is_plain(t) and t.shape == [channels] and t.is_contiguous() for t in of_channels)


def is_plain(x: Tensor) -> bool:
    """fp32 on the CPU."""
    return is_float32(x) and x.place.is_cpu_place()


class NormPass:
    """One pass of a batch norm and what its backward pass needs of it: bits, multiples, places of maxima.

    Kernels compute it; `pool` is a max-pool after a ReLU. `whole` lets it save integers instead of x.
    """

    alphas: tuple[Tensor | None, Tensor | None] = (None, None)  # PACT's, of quantizers (QuantizedNormPass)
    largest: Tensor | None = None  # for max |y| of every channel of every image, which forward writes

    def __init__(
        self,
        statistics: Statistics,
        activation: Activation,
        *,
        pool: Pool | None = None,
        whole: IntegerScale | None = None,
    ) -> None:
        self.statistics, self.activation, self.pool, self.whole = statistics, activation, pool, whole
        self.bits: Tensor | None = None  # what a ReLU after a sum lets through
        self.multiples: SavedMultiples | None = None  # instead of x
        self._places: Tensor | None = None

    def forward(
        self,
        x: Tensor | SavedMultiples,
        weight: Tensor | None,
        bias: Tensor | None,
        other: Tensor | None,
    ) -> Tensor:
        """Y; `multiples` are None where x is not reproduced by them."""
        statistics, shape = self.statistics, x.shape
        pooled = shape if self.pool is None else [*shape[:2], self.pool.out_height, self.pool.out_width]
        y = new_tensor(pooled)
        if self.pool is not None:
            self._places = new_tensor(pooled, "uint8")
        # Without a sum before it, what the activation lets through shows in x.
        if self.activation and other is not None:
            self.bits = new_tensor(_bits_shape(shape), "uint8")
        multiples, values = (x, None) if isinstance(x, SavedMultiples) else (None, x)
        if values is not None and self.whole is not None:
            multiples = SavedMultiples(shape, self.whole)
        fits = norm_kernels().batch_norm_forward(
            self._norm(shape, values, weight, bias, other),
            y.data_ptr(),
            statistics.mean.data_ptr(),
            statistics.inverse.data_ptr(),
            statistics.running_mean.data_ptr(),
            statistics.running_variance.data_ptr(),
            bits=_address(self.bits),
            multiples=None if multiples is None else multiples.addresses,
            largest=_address(self.largest),
            places=_address(self._places),
        )
        self.multiples = multiples if fits else None
        return y

    def backward(
        self,
        x: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        dy: Tensor,
        learning: Sequence[bool],
        *,
        overwrite: bool = False,
        largest: Tensor | None = None,
    ) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight, bias and the other, those that are wanted.

        `overwrite`: dX takes the memory of x. `largest` gets max |dX| of every channel of every image.
        """
        statistics, (of_x, *of_channels, of_other) = self.statistics, learning[:4]
        shape = list(dy.shape)
        if self.pool is not None:
            shape = [*shape[:2], self.pool.height, self.pool.width]
        dx = (x if overwrite else new_tensor(shape)) if of_x else None
        dweight, dbias = (new_tensor(statistics.mean.shape) if learns else None for learns in of_channels)
        dother = new_tensor(shape) if of_other and self.activation else None
        norm_kernels().batch_norm_backward(
            self._norm(shape, x, weight, bias),
            statistics.mean.data_ptr(),
            statistics.inverse.data_ptr(),
            dy.data_ptr(),
            *(_address(gradient) for gradient in (dx, dweight, dbias)),
            dother=_address(dother),
            bits=_address(self.bits),
            multiples=None if self.multiples is None else self.multiples.addresses,
            largest=_address(largest),
            places=_address(self._places),
        )
        if of_other and dother is None:
            dother = dy.clone()  # not dY itself: Paddle adds further gradients to what is returned, in place
        return dx, dweight, dbias, dother

    def _norm(
        self,
        shape: Sequence[int],
        x: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        other: Tensor | None = None,
    ) -> Norm:
        images, channels, *pixels = shape
        return Norm(
            _address(x),
            _address(weight),
            _address(bias),
            Layout(images, channels, math.prod(pixels)),
            self.statistics.epsilon,
            self.statistics.momentum,
            _address(other),
            None if self.whole is None else _address(self.whole.scale),
            int(self.activation),
            self.pool,
        )


class SavedMultiples:
    """Values as integer multiples of a scale: two bytes each, or three with high bits.

    Empty; a kernel writes to its addresses.
    """

    def __init__(self, shape: Sequence[int], of: IntegerScale) -> None:
        self.shape = list(shape)
        self._low, self._scale = new_tensor(shape, "int16"), of.scale
        self._high = new_tensor(shape, "int8") if of.has_high_bits else None

    @property
    def addresses(self) -> Multiples:
        """For the kernels."""
        return Multiples(self._low.data_ptr(), _address(self._high))

    @property
    def bytes(self) -> int:
        """What each value takes."""
        return 2 if self._high is None else 3

    def values(self) -> Tensor:
        """The values by Paddle's operators: the kernels' twin."""
        whole = self._low.cast("int32")
        if self._high is not None:
            whole = self._high.cast("int32") * 65536 + whole % 65536  # the low bits as unsigned
        return whole.cast("float32") * self._scale


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
        norm: NormPass,
    ) -> Tensor:
        inputs, statistics = (x, weight, bias, other), norm.statistics
        if not takes(x, statistics.running_mean, statistics.running_variance, weight, bias, other):
            raise LowbitError(
                "batch norm in lowbit's kernel: ask `takes` first, and use Paddle's where it says no"
            )
        ctx.norm = norm
        ctx.given = [tensor is not None for tensor in inputs]
        ctx.learning = [tensor is not None and not tensor.stop_gradient for tensor in inputs]
        x, other = x.contiguous(), None if other is None else other.contiguous()
        y = norm.forward(x, weight, bias, other)
        kept = (x if norm.multiples is None else None, weight, bias)
        ctx.kept = [tensor is not None for tensor in kept]
        fused.save_for_backward(ctx, *(tensor for tensor in kept if tensor is not None))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        saved, norm = iter(fused.saved_unchanged(ctx)), ctx.norm
        x, weight, bias = (next(saved) if kept else None for kept in ctx.kept)
        if paddle.is_grad_enabled():
            epsilon = norm.statistics.epsilon
            if x is None and ctx.learning[0]:
                raise LowbitError(
                    "second-order gradients are not supported for a batch norm after a layer in low precision"
                )
            x = norm.multiples.values() if x is None else x
            if norm.bits is not None:
                dy = dy * _flags(norm.bits, dy.shape)
            elif norm.activation:
                dy = dy * activation_slope(normalized(x, weight, bias, epsilon), norm.activation)
            gradients: tuple[Tensor | None, ...] = (*_gradients(x, weight, dy, epsilon), dy.clone())
        else:
            gradients = norm.backward(x, weight, bias, dy.contiguous(), ctx.learning)
        wanted = zip(gradients, ctx.learning, ctx.given, strict=True)
        return tuple(gradient if learns else None for gradient, learns, given in wanted if given)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def activation_slope(z: Tensor, activation: Activation) -> Tensor:
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
