"""What a layer multiplies: its three products on fp32 tensors, and how scales come out of the sums."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import paddle
from paddle import Tensor
from paddle.nn import functional as F

from lowbit.kernels import onednn, onednn_objects
from lowbit.kernels.onednn import Geometry
from lowbit.numerics.exact import multiply
from lowbit.numerics.fused import new_tensor


class Contraction(ABC):
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

    def forward_scale(self, x: Tensor, weight: Tensor) -> Tensor | None:
        return None

    def grad_input_scale(self, dy: Tensor, weight: Tensor) -> Tensor | None:
        return None

    def grad_weight_scale(self, dy: Tensor, x: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Convolution(Contraction):
    """A convolution in NCHW; in oneDNN where its library is there and the tensors are on the CPU."""

    geometry: Geometry

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        if not _in_onednn(x):
            return self._paddle(x, weight)
        return self._onednn("forward", x, weight, self.geometry.output)

    def grad_input(self, dy: Tensor, weight: Tensor) -> Tensor:
        if not _in_onednn(dy):
            return _by_autograd(lambda x: self._paddle(x, weight), self.geometry.input, dy)
        return self._onednn("grad_input", dy, weight, self.geometry.input)

    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        if not _in_onednn(dy):
            return _by_autograd(lambda weight: self._paddle(x, weight), self._weight_shape, dy)
        return self._onednn("grad_weight", x, dy, self._weight_shape)

    def forward_scale(self, x: Tensor, weight: Tensor) -> Tensor | None:
        if _owners(x) - {0} or _owners(weight) - {0}:
            return None
        # Expanded first: Paddle's own broadcasting of these two takes up to 20 times as long on a CPU.
        shape = [x.shape[0], weight.shape[0], 1, 1]
        return multiply(paddle.expand(x, shape), paddle.expand(weight.reshape([1, -1, 1, 1]), shape))

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
    def _weight_shape(self) -> tuple[int, ...]:
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


@dataclass(frozen=True)
class Matrix(Contraction):
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
class Transposed(Contraction):
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
class ByAutograd(Contraction):
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


def _in_onednn(x: Tensor) -> bool:
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
