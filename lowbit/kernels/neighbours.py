"""Batch norm, ReLU and max-pool between convolutions, on addresses of contiguous fp32 memory in NCHW."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

from lowbit.kernels.library import Layout, kernels


class Norm(NamedTuple):
    """A batch norm's input and settings; no weight is 1, no bias 0.

    `other`, if given, is added to what is normalized; then a ReLU follows if it is `rectified`. `scale` has a
    number for each channel of each image, of which x may be whole multiples.
    """

    x: int | None
    weight: int | None
    bias: int | None
    layout: Layout
    epsilon: float
    momentum: float
    other: int | None = None
    scale: int | None = None
    rectified: bool = False


class Pool(NamedTuple):
    """Windows of 2 or 3 in steps of 1 or 2; the first begins `top` and `left` of the image."""

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


class _Layout(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in Layout._fields]


class _Norm(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "bias")),
        ("layout", _Layout),
        *((name, ctypes.c_float) for name in ("epsilon", "momentum")),
        *((name, ctypes.c_void_p) for name in ("other", "scale")),
        ("rectified", ctypes.c_int32),
    ]


class _Pool(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in Pool._fields]


_ADDRESS, _LONG = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "lowbit_batch_norm_forward": [ctypes.POINTER(_Norm)] + [_ADDRESS] * 8,
    "lowbit_batch_norm_backward": [ctypes.POINTER(_Norm)] + [_ADDRESS] * 10,
    "lowbit_relu_forward": [_ADDRESS] * 3 + [_LONG],
    "lowbit_relu_backward": [_ADDRESS] * 3 + [_LONG],
    "lowbit_max_pool_forward": [_ADDRESS] * 3 + [ctypes.POINTER(_Pool)],
    "lowbit_max_pool_backward": [_ADDRESS] * 3 + [ctypes.POINTER(_Pool)],
}


class Neighbours:
    """The functions of csrc/neighbours.h, which says what they compute; addresses are not checked."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = None, arguments
        library.lowbit_batch_norm_forward.restype = ctypes.c_int32

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
        multiples: int | None = None,
        largest: int | None = None,
    ) -> bool:
        """Y, the batch's mean and 1 / deviation, and the running statistics moved on.

        A ReLU behind a sum writes its `bits`: (pixels + 7) // 8 bytes for each channel of each image.
        `largest` are the largest magnitudes of Y, [images, channels]. Returned is whether `multiples`, 16-bit
        integers, times the scale are x.
        """
        found = self._library.lowbit_batch_norm_forward(
            _norm(norm), y, mean, inverse, running_mean, running_variance, bits, multiples, largest
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
        multiples: int | None = None,
        largest: int | None = None,
    ) -> None:
        """The gradients that are wanted; from the multiples, if given, and not from x.

        `dother` is what of dY comes through the ReLU; without one it is dY, and not written. `largest` are
        the largest magnitudes of dX, [images, channels].
        """
        self._library.lowbit_batch_norm_backward(
            _norm(norm), bits, multiples, mean, inverse, dy, dx, dweight, dbias, dother, largest
        )

    def relu_forward(self, x: int, y: int, bits: int, count: int) -> None:
        """Y, and a bit per element: (count + 7) // 8 bytes."""
        self._library.lowbit_relu_forward(x, y, bits, count)

    def relu_backward(self, dy: int, bits: int, dx: int, count: int) -> None:
        """dX."""
        self._library.lowbit_relu_backward(dy, bits, dx, count)

    def max_pool_forward(self, x: int, y: int, places: int, pool: Pool) -> None:
        """Y, and for each of it a byte: where in its window it stands."""
        self._library.lowbit_max_pool_forward(x, y, places, ctypes.byref(_Pool(*pool)))

    def max_pool_backward(self, dy: int, places: int, dx: int, pool: Pool) -> None:
        """dX."""
        self._library.lowbit_max_pool_backward(dy, places, dx, ctypes.byref(_Pool(*pool)))


def _norm(norm: Norm) -> ctypes.Structure:
    return ctypes.byref(_Norm(*norm._replace(layout=_Layout(*norm.layout))))


@cache
def _bound(library: ctypes.CDLL) -> Neighbours:
    return Neighbours(library)


def neighbours() -> Neighbours | None:
    """The functions; None where there are no kernels (lowbit.kernels.why_missing says why)."""
    found = kernels()
    return None if found is None else _bound(found.library)
