"""Convolutions on a CPU by oneDNN and others instead of Paddle's own kernels, in training and evaluation."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.accel import onednn, onednn_objects, pointwise
from lowbit.accel.op_overrides import OpOverrides
from lowbit.errors import LowbitError
from lowbit.kernels import fp32_depthwise
from lowbit.kernels.fp32_winograd import winograd
from lowbit.kernels.gemm import Geometry
from lowbit.numerics import fused
from lowbit.numerics.fused import new_tensor


@contextmanager
def fast_convolutions(*, wanted: bool = True) -> Iterator[None]:
    """Inside the `with`, if `wanted`, 2-D convolutions of fp32 tensors in NCHW on the CPU run in oneDNN.

    1x1 convolutions with stride 1 run in the matrix library where images are large enough, and dW of
    depthwise ones of 5x5 and larger in lowbit's kernel. This applies to all callers: Paddle's layers,
    quantized ones, the user's own. The results are the same except for the order of sums, and as
    reproducible; Inf and NaN may show in more weights of their channel. 1x1 convolutions of one pixel and
    what oneDNN does not support (other types, layouts, devices, programs being exported) go the usual way,
    as does everything where the library is missing; `lowbit.accel.onednn_objects.why_missing()` says why.
    Gradients of gradients are an error.

    with fast_convolutions():
        loss = criterion(model(images), labels)
        loss.backward()
    """
    if not wanted or onednn_objects.why_missing() is not None:
        yield
        return
    with _OVERRIDES.open():
        yield


class _Rounding(threading.local):
    """Whether a thread is inside `rounding_convolutions`."""

    is_open = False


_ROUNDING = _Rounding()


@contextmanager
def rounding_convolutions() -> Iterator[None]:
    """Inside the `with`, convolutions without gradients may round more than direct ones, to be faster.

    For networks in fp32: 3x3 convolutions run by Winograd's algorithm, whose results differ by about 1e-5 of
    the largest value. Not for quantized ones, whose sums of integers must be exact. Has an effect inside
    `fast_convolutions` only.

    with fast_convolutions(), rounding_convolutions(), paddle.no_grad():
        logits = teacher(images)
    """
    before, _ROUNDING.is_open = _ROUNDING.is_open, True
    try:
        yield
    finally:
        _ROUNDING.is_open = before


def convolution_library(*, wanted: bool) -> str:
    """What convolves on a CPU, for people and for the record of what shapes last bits.

    >>> convolution_library(wanted=False)
    'Paddle'
    """
    if not wanted or onednn_objects.why_missing() is not None:
        return "Paddle"
    library = f"oneDNN {onednn_objects.version()}"
    return f"{library}, MKL for 1x1" if pointwise.is_there() else library


def _conv2d(*arguments: Any, dilation: int, groups: int, **named: Any) -> Tensor | None:
    """Paddle's operator, or None to leave it to Paddle; `dilation` and `groups` are at these places."""
    geometry = None if named else conv2d_geometry(arguments, dilation=dilation, groups=groups)
    if geometry is None or not _is_worth_it(geometry):
        return None
    x, weight = arguments[:2]
    if _ROUNDING.is_open and not paddle.is_grad_enabled() and (product := winograd(geometry)) is not None:
        x, weight, y = x.contiguous(), weight.contiguous(), new_tensor(geometry.output)
        product.forward(x.data_ptr(), weight.data_ptr(), y.data_ptr())
        return y
    learning = (not x.stop_gradient, not weight.stop_gradient)
    return ConvolutionNode.apply(x, weight, geometry, learning, False)


def conv2d_geometry(arguments: Sequence[Any], *, dilation: int, groups: int) -> Geometry | None:
    """That of Paddle's conv2d with these arguments; None unless it is one of fp32 in NCHW on the CPU.

    `dilation` and `groups` are their places among the arguments.
    """
    if len(arguments) < 8:
        return None
    x, weight, stride, padding, algorithm = arguments[:5]
    if not (
        algorithm == "EXPLICIT"
        and arguments[7] == "NCHW"
        and isinstance(x, Tensor)  # not a value of a static program
        and x.dtype == weight.dtype == paddle.float32
        and x.place.is_cpu_place()
        and x.ndim == 4
    ):
        return None
    return _geometry(x, weight, stride, padding, arguments[dilation], arguments[groups])


_OVERRIDES = OpOverrides(
    {
        "conv2d": partial(_conv2d, dilation=5, groups=6),
        "depthwise_conv2d": partial(_conv2d, dilation=6, groups=5),
    }
)


def _is_worth_it(geometry: Geometry) -> bool:
    """Not for 1x1 convolutions of one pixel, as in squeeze-and-excitation, where calls take longest."""
    return geometry.kernel != (1, 1) or geometry.input[2:] != (1, 1)


def _geometry(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Geometry | None:
    """None for what does not fit together: Paddle's own operator has the error message for it."""
    sides = tuple(padding) if len(padding) == 4 else (padding[0], padding[0], padding[1], padding[1])
    outputs, per_group, *kernel = weight.shape
    if x.shape[1] != per_group * groups or outputs % groups or min(sides) < 0:
        return None
    geometry = Geometry(
        input=tuple(x.shape),
        outputs=outputs,
        kernel=tuple(kernel),
        stride=tuple(stride),
        padding=sides,
        dilation=tuple(dilation),
        groups=groups,
    )
    return geometry if min(geometry.input + geometry.output) > 0 else None


def conv2d_is_replaced(geometry: Geometry) -> bool:
    """Whether Paddle's conv2d of fp32, called now in this thread, is `FloatProducts` for this geometry."""
    operator = "depthwise_conv2d" if geometry.groups == geometry.input[1] > 1 else "conv2d"
    return _OVERRIDES.is_called_directly(operator) and _is_worth_it(geometry)


_SLOW_DEPTHWISE_KERNEL = 5  # from this size on, oneDNN copies every window for dW


class _DepthwiseProducts:
    """A depthwise convolution by oneDNN, with lowbit's dW."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry, product = geometry, onednn.prepared(geometry)
        self.forward, self.grad_input = product.forward, product.grad_input

    def grad_weight(self, x: int, dy: int, dweight: int) -> None:
        fp32_depthwise.grad_weight(self._geometry, x, dy, dweight)


@lru_cache(maxsize=onednn.KEPT)
def _fastest(geometry: Geometry) -> Any:
    """The three products of fp32: `forward`, `grad_input` and `grad_weight` of addresses."""
    if pointwise.fits(geometry):
        return pointwise.prepared(geometry)
    if fp32_depthwise.fits(geometry) and max(geometry.kernel) >= _SLOW_DEPTHWISE_KERNEL:
        return _DepthwiseProducts(geometry)
    return onednn.prepared(geometry)


class FloatProducts:
    """A convolution of fp32 tensors; with `bf16` its three products have operands of bf16, in oneDNN.

    It holds X and W for backward; with `computes_again` a copy of W, of which Y is computed once more. These
    are `Products` of `lowbit.accel.conv_norm`.
    """

    needs_ranges = False

    def __init__(
        self,
        geometry: Geometry,
        learning: tuple[bool, bool],
        *,
        bf16: bool = False,
        computes_again: bool = False,
    ) -> None:
        self._learning, self._bf16, self.computes_again = learning, bf16, computes_again
        self._shape = geometry.output
        self._product = onednn.prepared(geometry, bf16=True) if bf16 else _fastest(geometry)
        self._operands: tuple[Tensor, ...] = ()  # X and W
        self._versions: list[int | None] = []

    def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor, None]:
        """Y, which is of no integers."""
        self._operands = x.contiguous(), weight.clone() if self.computes_again else weight.contiguous()
        self._versions = [fused.version(tensor) for tensor in self._operands]
        return self.again(), None

    def again(self) -> Tensor:
        """Y once more, in the same bits."""
        x, weight = self._unchanged()
        y = new_tensor(self._shape)
        self._product.forward(x.data_ptr(), weight.data_ptr(), y.data_ptr())
        return y

    def backward(self, dy: Tensor, ranges: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """dX and dW."""
        if self._bf16:
            check_first_order("products in bf16: train in fp32 (amp_level O0)")
        else:
            check_first_order("fast fp32 convolutions: do without accelerate() or Global.fast_convolutions")
        x, weight = self._unchanged()
        dx = dweight = None
        if self._learning[0]:
            dx = new_tensor(x.shape)
            self._product.grad_input(dy.data_ptr(), weight.data_ptr(), dx.data_ptr())
        if self._learning[1]:
            dweight = new_tensor(weight.shape)
            self._product.grad_weight(x.data_ptr(), dy.data_ptr(), dweight.data_ptr())
        return dx, dweight

    def _unchanged(self) -> tuple[Tensor, ...]:
        for tensor, version in zip(self._operands, self._versions, strict=True):
            fused.check_unchanged(tensor, version)
        return self._operands


class ConvolutionNode(PyLayer):
    """The products as an autograd node.

    ConvolutionNode.apply(x, weight, geometry, (True, True), False)
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, geometry: Geometry, learning: tuple[bool, bool], bf16: bool
    ) -> Tensor:
        ctx.products = FloatProducts(geometry, learning, bf16=bf16)
        y, _ = ctx.products.forward(x, weight)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return ctx.products.backward(dy.contiguous())


def check_first_order(for_what: str) -> None:
    """An error inside a backward pass whose own gradient is wanted; `for_what` also says what to do."""
    if paddle.is_grad_enabled():
        raise LowbitError(f"second-order gradients are not supported for {for_what}")
