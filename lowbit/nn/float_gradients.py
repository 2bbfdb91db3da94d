"""Gradients of convolutions in fp32, for QAT: the fastest of several algorithms for each geometry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import paddle
from paddle import Tensor

from lowbit.accel import pointwise
from lowbit.kernels import fp32_depthwise, kernels
from lowbit.kernels.fp32_winograd import winograd
from lowbit.kernels.gemm import Geometry
from lowbit.nn.linear_ops import ChannelsLast, Convolution, LinearOp, in_onednn
from lowbit.nn.qtensor import QTensor
from lowbit.numerics.fused import is_plain_memory, memory_of, new_tensor

_BYTES = {paddle.int8: "int8", paddle.uint8: "uint8"}


def in_floats(linear_op: LinearOp, dy: Tensor) -> LinearOp:
    """The same products for a dY that is not on a grid: nobody needs its sums to be exact.

    Where it is faster, gradients of 3x3 convolutions are computed by Winograd's algorithm; they differ by
    about 1e-5 of the largest value. Those of 1x1 convolutions and grad_weight of depthwise ones have another
    order of sums.
    """
    if isinstance(linear_op, ChannelsLast):
        return ChannelsLast(in_floats(linear_op.inner, dy))
    if not isinstance(linear_op, Convolution) or not in_onednn(dy):
        return linear_op
    own = kernels()
    return _fastest(linear_op.geometry, None if own is None else own.variant)


@lru_cache(maxsize=4096)
def _fastest(geometry: Geometry, variant: str | None) -> Convolution:
    """`variant` is that of the kernels: which algorithm pays depends on the instructions."""
    if variant is not None and winograd(geometry) is not None:
        return _ByWinograd(geometry)
    if pointwise.fits(geometry):
        return _Pointwise(geometry)
    if variant is not None and fp32_depthwise.fits(geometry):
        return _Depthwise(geometry)
    return Convolution(geometry)


@dataclass(frozen=True)
class _ByWinograd(Convolution):
    """A convolution whose gradients are computed by Winograd's algorithm, which rounds."""

    def grad_input(self, dy: Tensor, weight: Tensor) -> Tensor:
        dy, weight, dx = dy.contiguous(), weight.contiguous(), new_tensor(self.geometry.input)
        winograd(self.geometry).grad_input(dy.data_ptr(), weight.data_ptr(), dx.data_ptr())
        return dx

    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        dy, x, dweight = dy.contiguous(), x.contiguous(), new_tensor(self.weight_shape)
        winograd(self.geometry).grad_weight(x.data_ptr(), dy.data_ptr(), dweight.data_ptr())
        return dweight


@dataclass(frozen=True)
class _Depthwise(Convolution):
    """A depthwise convolution whose grad_weight is lowbit's: oneDNN copies every window of 5x5."""

    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        dy, x, dweight = dy.contiguous(), x.contiguous(), new_tensor(self.weight_shape)
        fp32_depthwise.grad_weight(self.geometry, x.data_ptr(), dy.data_ptr(), dweight.data_ptr())
        return dweight

    def grad_weight_of_operand(self, dy: Tensor, x: QTensor) -> Tensor:
        if x.data.dtype not in _BYTES or x.scale is None or math.prod(x.scale.shape) != 1:
            return super().grad_weight_of_operand(dy, x)
        dy, data, dweight = dy.contiguous(), x.data.contiguous(), new_tensor(self.weight_shape)
        fp32_depthwise.grad_weight(
            *(self.geometry, data.data_ptr(), dy.data_ptr(), dweight.data_ptr()),
            kind=_BYTES[data.dtype],
            scale=_number(x.scale),
        )
        return dweight


def _number(x: Tensor) -> float:
    """The value of a tensor of one number on the CPU; `float` takes ten times as long."""
    return float(memory_of(x).item()) if is_plain_memory(x) else float(x)


@dataclass(frozen=True)
class _Pointwise(Convolution):
    """A 1x1 convolution whose gradients are matrix products of every image."""

    def grad_input(self, dy: Tensor, weight: Tensor) -> Tensor:
        dy, weight, dx = dy.contiguous(), weight.contiguous(), new_tensor(self.geometry.input)
        pointwise.prepared(self.geometry).grad_input(dy.data_ptr(), weight.data_ptr(), dx.data_ptr())
        return dx

    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        dy, x, dweight = dy.contiguous(), x.contiguous(), new_tensor(self.weight_shape)
        pointwise.prepared(self.geometry).grad_weight(x.data_ptr(), dy.data_ptr(), dweight.data_ptr())
        return dweight
