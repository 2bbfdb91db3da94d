"""What a layer multiplies: convolutions and matrix products with their two gradients, on fp32 tensors.

A `LinearOp` is one layer's three products for one shape of input, and says which scales can be taken out
of its sums. The geometry of a convolution and channels-last layouts are worked out here, too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.accel import onednn, onednn_objects
from lowbit.kernels.gemm import Geometry
from lowbit.nn.qtensor import QTensor
from lowbit.numerics.exact import multiply
from lowbit.numerics.fused import is_plain_memory, memory_of, new_tensor


def geometry_of(layer: nn.Conv2D, shape: Sequence[int]) -> Geometry | None:
    """Of an input with this shape in NCHW; None for shapes that do not fit together: Paddle's own operator
    has the error message for them.

    >>> geometry_of(nn.Conv2D(3, 8, 3, padding="SAME"), [1, 3, 5, 5]).output
    (1, 8, 5, 5)
    """
    if len(shape) != 4 or shape[1] != layer._in_channels:
        return None
    kernel, stride, dilation = layer.weight.shape[2:], layer._stride, layer._dilation
    if layer._padding_mode != "zeros":
        padding = (0, 0, 0, 0)  # done before
    elif isinstance(layer._padding, str):
        padding, dilation = _by_word(layer._padding.upper(), shape[2:], kernel, stride, dilation)
    else:
        padding = _sides(layer)
    return _geometry(
        input=tuple(shape),
        outputs=layer._out_channels,
        kernel=tuple(kernel),
        stride=tuple(stride),
        padding=padding,
        dilation=tuple(dilation),
        groups=layer._groups,
    )


@lru_cache(maxsize=4096)
def _geometry(**sizes: Any) -> Geometry | None:
    geometry = Geometry(**sizes)
    return geometry if min(geometry.input + geometry.output) > 0 and min(geometry.padding) >= 0 else None


def transposed_geometry(
    layer: nn.Conv2DTranspose, shape: Sequence[int], output_size: Sequence[int] | int | None
) -> Geometry | None:
    """The geometry of the convolution that makes the layer's input out of its output; None as above.

    >>> transposed_geometry(nn.Conv2DTranspose(8, 3, 2, stride=2), [1, 8, 4, 4], None).input
    (1, 3, 8, 8)
    """
    if len(shape) != 4 or shape[1] != layer._in_channels or isinstance(layer._padding, str):
        return None
    padding, kernel = _sides(layer), layer.weight.shape[2:]
    sizes = [
        (size - 1) * stride - before - after + dilation * (taps - 1) + 1
        for size, stride, before, after, dilation, taps in zip(
            shape[2:], layer._stride, padding[::2], padding[1::2], layer._dilation, kernel, strict=True
        )
    ]
    extra = layer.output_padding
    if output_size is not None:
        sizes = [output_size] * 2 if isinstance(output_size, int) else list(output_size)
    else:
        extra = [extra] * 2 if isinstance(extra, int) else extra
        sizes = [size + more for size, more in zip(sizes, extra, strict=True)]
    geometry = Geometry(
        input=(shape[0], layer._out_channels, *map(int, sizes)),
        outputs=layer._in_channels,
        kernel=tuple(kernel),
        stride=tuple(layer._stride),
        padding=padding,
        dilation=tuple(layer._dilation),
        groups=layer._groups,
    )
    fits = min(geometry.input) > 0 and min(padding) >= 0 and geometry.output == tuple(shape)
    return geometry if fits else None


def _by_word(
    word: str, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int, int, int], Sequence[int]]:
    if word == "VALID":
        return (0, 0, 0, 0), dilation
    sides = []
    for length, taps, step in zip(size, kernel, stride, strict=True):
        total = max((-(-length // step) - 1) * step + taps - length, 0)
        sides.append((total // 2, total - total // 2))
    (top, bottom), (left, right) = sides
    return (top, bottom, left, right), (1, 1)  # with SAME, Paddle takes dilation for 1


def _sides(layer: nn.Conv2D | nn.Conv2DTranspose) -> tuple[int, int, int, int]:
    """Top, bottom, left, right, out of any way in which Paddle lets one write them."""
    padding: Any = layer._padding
    if isinstance(padding, int):
        return (padding,) * 4
    if isinstance(padding[0], list | tuple):  # a pair for every axis, those of batch and channels being 0
        height = layer._data_format.index("H")
        return (*padding[height], *padding[height + 1])
    if len(padding) == 4:
        return (padding[0], padding[1], padding[2], padding[3])
    return (padding[0], padding[0], padding[1], padding[1])


# The three products of a layer on fp32 tensors, and which scales factor out of the sums.


class LinearOp(ABC):
    """Y = X·W of one layer and one shape of input, with dX = dY·W and dW = dY·X.

    A scale that is constant along what a product sums over can be taken out of the sum: `…_scale` gives both
    operands' scales as one factor of the output, or None where one of them stays inside.
    """

    @abstractmethod
    def forward(self, x: Tensor, weight: Tensor) -> Tensor: ...

    @abstractmethod
    def grad_input(self, dy: Tensor, weight: Tensor) -> Tensor: ...

    @abstractmethod
    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor: ...

    def grad_weight_of_operand(self, dy: Tensor, x: QTensor) -> Tensor:
        """grad_weight with the values of integers."""
        return self.grad_weight(dy, x.values())

    def forward_scale(self, x: Tensor, weight: Tensor) -> Tensor | None:
        return None

    def grad_input_scale(self, dy: Tensor, weight: Tensor) -> Tensor | None:
        return None

    def grad_weight_scale(self, dy: Tensor, x: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Convolution(LinearOp):
    """A convolution in NCHW; in oneDNN where its library is there and the tensors are on the CPU."""

    geometry: Geometry

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        if not in_onednn(x):
            return self._paddle(x, weight)
        return self._onednn("forward", x, weight, self.geometry.output)

    def grad_input(self, dy: Tensor, weight: Tensor) -> Tensor:
        if not in_onednn(dy):
            return _by_autograd(lambda x: self._paddle(x, weight), self.geometry.input, dy)
        return self._onednn("grad_input", dy, weight, self.geometry.input)

    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        if not in_onednn(dy):
            return _by_autograd(lambda weight: self._paddle(x, weight), self.weight_shape, dy)
        return self._onednn("grad_weight", x, dy, self.weight_shape)

    def forward_scale(self, x: Tensor, weight: Tensor, images: int | None = None) -> Tensor | None:
        """With `images`, one of every image also where they share it."""
        if _owners(x) - {0} or _owners(weight) - {0}:
            return None
        return _outer(x, weight, images or x.shape[0])

    def grad_input_scale(self, dy: Tensor, weight: Tensor) -> Tensor | None:
        if _owners(dy) - {0} or _owners(weight) - {1}:
            return None
        return multiply(dy, _tiled(weight, self.geometry.groups))

    def grad_weight_scale(self, dy: Tensor, x: Tensor) -> Tensor | None:
        if _owners(dy) - {1} or _owners(x) - {1}:
            return None
        return multiply(dy.reshape([-1, 1, 1, 1]), self._inputs_of_outputs(x))

    def _inputs_of_outputs(self, x: Tensor) -> Tensor:
        """A number per input channel as the weight has it: [outputs or 1, inputs of a group or 1, 1, 1]."""
        groups, outputs = self.geometry.groups, self.geometry.outputs
        if math.prod(x.shape) == 1 or groups == 1:
            return x
        rows = paddle.repeat_interleave(x.reshape([groups, -1]), outputs // groups, axis=0)
        return rows.unsqueeze([2, 3])

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of W."""
        geometry = self.geometry
        return (geometry.outputs, geometry.input[1] // geometry.groups, *geometry.kernel)

    def _onednn(self, product: str, a: Tensor, b: Tensor, shape: tuple[int, ...]) -> Tensor:
        a, b, out = a.contiguous(), b.contiguous(), new_tensor(shape)
        getattr(onednn.prepared(self.geometry), product)(a.data_ptr(), b.data_ptr(), out.data_ptr())
        return out

    def _paddle(self, x: Tensor, weight: Tensor) -> Tensor:
        geometry = self.geometry
        return F.conv2d(
            x,
            weight,
            stride=list(geometry.stride),
            padding=list(geometry.padding),
            dilation=list(geometry.dilation),
            groups=geometry.groups,
        )


def _outer(x: Tensor, weight: Tensor, images: int) -> Tensor:
    """Scales of images times those of outputs: [images, outputs or 1, 1, 1]."""
    shape = [images, weight.shape[0], 1, 1]
    if paddle.in_dynamic_mode() and is_plain_memory(x) and is_plain_memory(weight):
        y = new_tensor(shape)
        np.multiply(memory_of(x), memory_of(weight).reshape([1, -1, 1, 1]), out=memory_of(y))
        return y
    # Expanded first: Paddle's own broadcasting of these two takes up to 20 times as long on a CPU.
    return multiply(paddle.expand(x, shape), paddle.expand(weight.reshape([1, -1, 1, 1]), shape))


@dataclass(frozen=True)
class Matrix(LinearOp):
    """A Linear layer: X is [..., inputs], W is [inputs, outputs]."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return paddle.matmul(x, weight)

    def grad_input(self, dy: Tensor, weight: Tensor) -> Tensor:
        return paddle.matmul(dy, weight, transpose_y=True)

    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        return paddle.matmul(_rows(x), _rows(dy), transpose_x=True)

    def forward_scale(self, x: Tensor, weight: Tensor) -> Tensor | None:
        if x.ndim - 1 in _owners(x) or 0 in _owners(weight):
            return None
        return multiply(x, weight.reshape([-1]))

    def grad_input_scale(self, dy: Tensor, weight: Tensor) -> Tensor | None:
        if dy.ndim - 1 in _owners(dy) or 1 in _owners(weight):
            return None
        return multiply(dy, weight.reshape([-1]))

    def grad_weight_scale(self, dy: Tensor, x: Tensor) -> Tensor | None:
        if _owners(dy) - {dy.ndim - 1} or _owners(x) - {x.ndim - 1}:
            return None
        return multiply(dy.reshape([1, -1]), x.reshape([-1, 1]))


@dataclass(frozen=True)
class Transposed(LinearOp):
    """A transposed convolution: that which would make X out of Y, with forward and backward swapped."""

    convolution: Convolution

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.convolution.grad_input(x, weight)

    def grad_input(self, dy: Tensor, weight: Tensor) -> Tensor:
        return self.convolution.forward(dy, weight)

    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        return self.convolution.grad_weight(x, dy)

    def forward_scale(self, x: Tensor, weight: Tensor) -> Tensor | None:
        return self.convolution.grad_input_scale(x, weight)

    def grad_input_scale(self, dy: Tensor, weight: Tensor) -> Tensor | None:
        return self.convolution.forward_scale(dy, weight)

    def grad_weight_scale(self, dy: Tensor, x: Tensor) -> Tensor | None:
        return self.convolution.grad_weight_scale(x, dy)


@dataclass(frozen=True)
class ByAutograd(LinearOp):
    """Any product that Paddle can derive: slower, but it always goes."""

    product: Callable[[Tensor, Tensor], Tensor]
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.product(x, weight)

    def grad_input(self, dy: Tensor, weight: Tensor) -> Tensor:
        return _by_autograd(lambda x: self.product(x, weight), self.input_shape, dy)

    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        return _by_autograd(lambda weight: self.product(x, weight), self.weight_shape, dy)


def _by_autograd(product: Callable[[Tensor], Tensor], shape: tuple[int, ...], dy: Tensor) -> Tensor:
    """The gradient by an operand of this shape: the product is linear, so its value does not matter."""
    operand = paddle.zeros(list(shape), "float32")
    operand.stop_gradient = False
    with paddle.enable_grad():
        (gradient,) = paddle.grad(product(operand), operand, dy)
    return gradient.detach()


def in_onednn(x: Tensor) -> bool:
    """Whether its convolutions run in oneDNN: on the CPU, where the library is there."""
    return x.place.is_cpu_place() and onednn_objects.why_missing() is None


def _owners(scale: Tensor) -> set[int]:
    """The axes along which scales differ."""
    return {axis for axis, size in enumerate(scale.shape) if size != 1}


def _tiled(scale: Tensor, groups: int) -> Tensor:
    """A number per input channel of a group, for the channels of all groups: [1, channels, 1, 1]."""
    return (
        scale if math.prod(scale.shape) == 1 else paddle.tile(scale.reshape([1, -1, 1, 1]), [1, groups, 1, 1])
    )


def _rows(x: Tensor) -> Tensor:
    return x.reshape([-1, x.shape[-1]])


# Channels-last tensors (NHWC) through channels-first kernels.


@dataclass(frozen=True)
class ChannelsLast(LinearOp):
    """A linear_op in NCHW between two changes of layout; weights lie the same way in both.

    >>> channels_first(paddle.zeros([2, 5, 6, 3])).shape
    paddle.Size([2, 3, 5, 6])
    """

    inner: LinearOp

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return channels_last(self.inner.forward(channels_first(x), weight))

    def grad_input(self, dy: Tensor, weight: Tensor) -> Tensor:
        return channels_last(self.inner.grad_input(channels_first(dy), weight))

    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        return self.inner.grad_weight(channels_first(dy), channels_first(x))

    def forward_scale(self, x: Tensor, weight: Tensor) -> Tensor | None:
        found = self.inner.forward_scale(channels_first(x), weight)
        return None if found is None else channels_last(found)

    def grad_input_scale(self, dy: Tensor, weight: Tensor) -> Tensor | None:
        found = self.inner.grad_input_scale(channels_first(dy), weight)
        return None if found is None else channels_last(found)

    def grad_weight_scale(self, dy: Tensor, x: Tensor) -> Tensor | None:
        return self.inner.grad_weight_scale(channels_first(dy), channels_first(x))


def channels_first(x: Tensor) -> Tensor:
    """NHWC as NCHW, in separate memory: kernels take addresses."""
    return x.transpose([0, 3, 1, 2]).contiguous()


def channels_last(x: Tensor) -> Tensor:
    """NCHW as NHWC, likewise."""
    return x.transpose([0, 2, 3, 1]).contiguous()
