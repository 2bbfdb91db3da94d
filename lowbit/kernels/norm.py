"""Batch norm, activations and max-pool on contiguous fp32 in NCHW: the bindings of csrc/norm/norm.h."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from lowbit.kernels.gemm import MULTIPLES, Multiples, by_reference
from lowbit.kernels.library import ADDRESS, Signatures, declare, kernels
from lowbit.kernels.quantization import OBSERVER, CLayout, CObserver, Layout


class Activation(IntEnum):
    """What follows a batch norm in the same pass: lowbit_activation of csrc/norm/norm.h."""

    NONE = 0
    RELU = 1
    RELU6 = 2
    HARDSWISH = 3


class Norm(NamedTuple):
    """A batch norm's input and settings; without a weight it is 1, without a bias 0.

    `other`, if given, is a residual that is added after normalization; an activation follows, after a
    residual only a ReLU. `scale` has one value per channel of each image, of which x may be multiples.
    `pool` is a max-pool after the ReLU.
    """

    x: int | None
    weight: int | None
    bias: int | None
    layout: Layout
    epsilon: float
    momentum: float
    other: int | None = None
    scale: int | None = None
    activation: int = 0
    pool: Pool | None = None


class Pool(NamedTuple):
    """Windows of 2 or 3 with strides of 1 or 2; the image is padded by `top` rows and `left` columns."""

    planes: int
    height: int
    width: int
    out_height: int
    out_width: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    top: int
    left: int


class Shortcut(NamedTuple):
    """lowbit_shortcut: which pixels are kept, and the channels of zeros before and after them."""

    images: int
    channels: int
    height: int
    width: int
    stride: int
    zero_channels: int


class NormQuantizers(NamedTuple):
    """lowbit_norm_quantizers: those of a batch norm's result, before and after its activation, each or None.

    Forward writes, at these addresses, what backward reads: a byte per element each. The integers `q` of the
    first are wanted with an activation, the marks `clipped` and `after_clipped` with their quantizers.
    `integers`, if wanted, are those of the second.
    """

    before: CObserver | None
    after: CObserver | None = None
    q: int | None = None
    clipped: int | None = None
    integers: int | None = None
    after_clipped: int | None = None


class _NormQuantizers(ctypes.Structure):
    _fields_ = [
        *((name, OBSERVER) for name in ("before", "after")),
        *((name, ctypes.c_void_p) for name in NormQuantizers._fields[2:]),
    ]


class _Shortcut(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in Shortcut._fields]


class _Pool(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in Pool._fields]


class _Norm(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "bias")),
        ("layout", CLayout),
        *((name, ctypes.c_float) for name in ("epsilon", "momentum")),
        *((name, ctypes.c_void_p) for name in ("other", "scale")),
        ("activation", ctypes.c_int32),
        ("pool", ctypes.POINTER(_Pool)),
    ]


_NORM, _POOL, _INT64, _STATUS = ctypes.POINTER(_Norm), ctypes.POINTER(_Pool), ctypes.c_int64, ctypes.c_int
_SHORTCUT, _QUANTIZERS = ctypes.POINTER(_Shortcut), ctypes.POINTER(_NormQuantizers)
_SIGNATURES: Signatures = {
    "lowbit_batch_norm_forward": (_STATUS, [_NORM] + [ADDRESS] * 6 + [MULTIPLES] + [ADDRESS] * 2),
    "lowbit_batch_norm_backward": (_STATUS, [_NORM, ADDRESS, MULTIPLES] + [ADDRESS] * 9),
    "lowbit_quantized_norm_forward": (_INT64, [_NORM, _QUANTIZERS] + [ADDRESS] * 6),
    "lowbit_quantized_norm_values": (_INT64, [_NORM, _QUANTIZERS] + [ADDRESS] * 4),
    "lowbit_quantized_norm_backward": (_STATUS, [_NORM, _QUANTIZERS] + [ADDRESS] * 8),
    "lowbit_relu_forward": (_STATUS, [ADDRESS] * 3 + [_INT64]),
    "lowbit_relu_backward": (_STATUS, [ADDRESS] * 3 + [_INT64]),
    "lowbit_hardswish_forward": (_STATUS, [ADDRESS] * 2 + [_INT64]),
    "lowbit_hardswish_backward": (_STATUS, [ADDRESS] * 3 + [_INT64]),
    "lowbit_channel_product_forward": (_STATUS, [ADDRESS] * 3 + [_INT64] * 2),
    "lowbit_channel_product_backward": (_STATUS, [ADDRESS] * 5 + [_INT64] * 2),
    "lowbit_channel_mean_forward": (_STATUS, [ADDRESS] * 2 + [_INT64] * 2),
    "lowbit_channel_mean_backward": (_STATUS, [ADDRESS] * 2 + [_INT64] * 2),
    "lowbit_shortcut_forward": (_STATUS, [ADDRESS] * 2 + [_SHORTCUT]),
    "lowbit_shortcut_backward": (_STATUS, [ADDRESS] * 2 + [_SHORTCUT]),
    "lowbit_max_pool_forward": (_STATUS, [ADDRESS] * 3 + [_POOL]),
    "lowbit_max_pool_backward": (_STATUS, [ADDRESS] * 3 + [_POOL]),
}


class NormKernels:
    """The functions of csrc/norm/norm.h, which defines what they compute; addresses are not checked."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        declare(library, _SIGNATURES)

    def batch_norm_forward(
        self,
        norm: Norm,
        y: int,
        mean: int,
        inverse: int,
        running_mean: int,
        running_variance: int,
        *,
        bits: int | None = None,
        multiples: Multiples | None = None,
        largest: int | None = None,
        places: int | None = None,
    ) -> bool:
        """Y, the batch's mean and 1 / deviation, and the updated running statistics.

        A ReLU after a residual sum writes its `bits`: (pixels + 7) // 8 bytes per channel of each image.
        `largest` are the largest magnitudes of Y, [images, channels]. With a pool, Y and `places` are what
        `max_pool_forward` gives. Returns whether the `multiples` times the scale equal x; without an x they
        are given instead of it.
        """
        statistics = mean, inverse, running_mean, running_variance
        found = self._library.lowbit_batch_norm_forward(
            _norm(norm), y, *statistics, bits, by_reference(multiples), largest, places
        )
        return bool(found)

    def batch_norm_backward(
        self,
        norm: Norm,
        mean: int,
        inverse: int,
        dy: int,
        dx: int | None,
        dweight: int | None,
        dbias: int | None,
        *,
        dother: int | None = None,
        bits: int | None = None,
        multiples: Multiples | None = None,
        largest: int | None = None,
        places: int | None = None,
    ) -> None:
        """The gradients that are wanted; with `multiples`, they replace x, which dX may overwrite.

        `dother` is dY before the ReLU; without a ReLU it equals dY and is not written. `largest` are the
        largest magnitudes of dX, [images, channels]. With a pool, dY is that of its outputs.
        """
        gradients = dx, dweight, dbias, dother
        self._library.lowbit_batch_norm_backward(
            _norm(norm), bits, by_reference(multiples), mean, inverse, dy, *gradients, largest, places
        )

    def quantized_norm_forward(
        self,
        norm: Norm,
        by: NormQuantizers,
        mean: int,
        inverse: int,
        running_mean: int,
        running_variance: int,
        y: int | None,
        *,
        largest: int | None = None,
    ) -> int:
        """`batch_norm_forward` with quantizers; how many values were NaN before the second.

        With a quantizer before it, the activation is none or hard swish. `largest` are those of Y without a
        second quantizer; with one, Y may not be wanted.
        """
        statistics = mean, inverse, running_mean, running_variance
        return self._library.lowbit_quantized_norm_forward(
            _norm(norm), _quantizers(by), *statistics, y, largest
        )

    def quantized_norm_values(self, norm: Norm, by: NormQuantizers, mean: int, inverse: int, y: int) -> None:
        """Y, where `quantized_norm_forward` has not written it."""
        self._library.lowbit_quantized_norm_values(_norm(norm), _quantizers(by), mean, inverse, y, None)

    def quantized_norm_backward(
        self,
        norm: Norm,
        by: NormQuantizers,
        mean: int,
        inverse: int,
        dy: int,
        dx: int,
        dweight: int | None,
        dbias: int | None,
        dbound: int | None,
        after_dbound: int | None = None,
    ) -> None:
        """dX, which may be dY, and the other gradients that are wanted."""
        gradients = dx, dweight, dbias, dbound, after_dbound
        self._library.lowbit_quantized_norm_backward(
            _norm(norm), _quantizers(by), mean, inverse, dy, *gradients
        )

    def relu_forward(self, x: int, y: int, bits: int, count: int) -> None:
        """Y, and a bit per element: (count + 7) // 8 bytes."""
        self._library.lowbit_relu_forward(x, y, bits, count)

    def relu_backward(self, dy: int, bits: int, dx: int, count: int) -> None:
        """dX."""
        self._library.lowbit_relu_backward(dy, bits, dx, count)

    def hardswish_forward(self, x: int, y: int, count: int) -> None:
        """Y."""
        self._library.lowbit_hardswish_forward(x, y, count)

    def hardswish_backward(self, x: int, dy: int, dx: int, count: int) -> None:
        """dX."""
        self._library.lowbit_hardswish_backward(x, dy, dx, count)

    def channel_product_forward(self, x: int, scale: int, y: int, rows: int, inner: int) -> None:
        """Rows of x times one number each."""
        self._library.lowbit_channel_product_forward(x, scale, y, rows, inner)

    def channel_product_backward(
        self, x: int, scale: int, dy: int, dx: int, dscale: int, rows: int, inner: int
    ) -> None:
        """dX, and the sums of dY * x over rows."""
        self._library.lowbit_channel_product_backward(x, scale, dy, dx, dscale, rows, inner)

    def channel_mean_forward(self, x: int, y: int, rows: int, inner: int) -> None:
        """The mean of every row."""
        self._library.lowbit_channel_mean_forward(x, y, rows, inner)

    def channel_mean_backward(self, dy: int, dx: int, rows: int, inner: int) -> None:
        """dX: dY / inner for every element of a row."""
        self._library.lowbit_channel_mean_backward(dy, dx, rows, inner)

    def shortcut_forward(self, x: int, y: int, of: Shortcut) -> None:
        """The kept pixels between channels of zeros."""
        self._library.lowbit_shortcut_forward(x, y, ctypes.byref(_Shortcut(*of)))

    def shortcut_backward(self, dy: int, dx: int, of: Shortcut) -> None:
        """dX."""
        self._library.lowbit_shortcut_backward(dy, dx, ctypes.byref(_Shortcut(*of)))

    def max_pool_forward(self, x: int, y: int, places: int, pool: Pool) -> None:
        """Y, and the index of each value in its window, a byte each."""
        self._library.lowbit_max_pool_forward(x, y, places, ctypes.byref(_Pool(*pool)))

    def max_pool_backward(self, dy: int, places: int, dx: int, pool: Pool) -> None:
        """dX."""
        self._library.lowbit_max_pool_backward(dy, places, dx, ctypes.byref(_Pool(*pool)))


def _norm(norm: Norm) -> Any:
    x, weight, bias, layout, *rest, pool = norm
    c_pool = None if pool is None else ctypes.pointer(_Pool(*pool))
    return ctypes.byref(_Norm(x, weight, bias, CLayout(*layout), *rest, c_pool))


def _quantizers(by: NormQuantizers) -> Any:
    before, after, *addresses = by
    pointers = (None if one is None else ctypes.pointer(one) for one in (before, after))
    return ctypes.byref(_NormQuantizers(*pointers, *addresses))


@cache
def _bound(library: ctypes.CDLL) -> NormKernels:
    return NormKernels(library)


def norm_kernels() -> NormKernels | None:
    """The functions; None where there are no kernels (lowbit.kernels.why_missing says why)."""
    found = kernels()
    return None if found is None else _bound(found.library)
