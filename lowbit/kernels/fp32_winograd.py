"""3x3 convolutions of fp32 by Winograd's F(4x4, 3x3): the bindings of csrc/fp32_winograd/fp32_winograd.h."""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any

from lowbit.kernels.gemm import Geometry
from lowbit.kernels.library import ADDRESS, Signatures, declare, kernels

_PANEL = 16  # channels that the kernels compute at a time


class _Convolution(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("images", "channels", "height", "width"),
            *("outputs", "out_height", "out_width"),
            *("top", "left"),
        )
    ]


_CONVOLUTION, _STATUS = ctypes.POINTER(_Convolution), ctypes.c_int
_SIGNATURES: Signatures = {
    "lowbit_fp32_winograd_pays": (_STATUS, []),
    "lowbit_fp32_winograd_forward": (_STATUS, [_CONVOLUTION] + [ADDRESS] * 3),
    "lowbit_fp32_winograd_grad_input": (_STATUS, [_CONVOLUTION] + [ADDRESS] * 3),
    "lowbit_fp32_winograd_grad_weight": (_STATUS, [_CONVOLUTION] + [ADDRESS] * 3),
}


class WinogradConvolution:
    """The three products of one geometry; arguments are addresses of contiguous fp32 tensors.

    Results differ from those of a direct convolution by rounding: by about 1e-6 of the largest value.

    convolution = winograd(geometry)
    convolution.forward(x.data_ptr(), weight.data_ptr(), y.data_ptr())
    """

    def __init__(self, library: ctypes.CDLL, geometry: Geometry) -> None:
        top, _, left, _ = geometry.padding
        _, *out = geometry.output
        self._library = library
        self._shape = ctypes.byref(_Convolution(*geometry.input, *out, top, left))

    def forward(self, x: int, weight: int, y: int) -> None:
        """Y, from X and W."""
        self._library.lowbit_fp32_winograd_forward(self._shape, x, weight, y)

    def grad_input(self, dy: int, weight: int, dx: int) -> None:
        """dX, from dY and W."""
        self._library.lowbit_fp32_winograd_grad_input(self._shape, dy, weight, dx)

    def grad_weight(self, x: int, dy: int, dweight: int) -> None:
        """dW, from X and dY."""
        self._library.lowbit_fp32_winograd_grad_weight(self._shape, x, dy, dweight)


def fits(geometry: Geometry) -> bool:
    """Whether the kernels can compute it: 3x3, stride 1, channels in multiples of 16.

    >>> sizes = dict(kernel=(3, 3), stride=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1), groups=1)
    >>> [fits(Geometry(input=(2, channels, 8, 8), outputs=16, **sizes)) for channels in (3, 16)]
    [False, True]
    """
    return (
        geometry.kernel == (3, 3)
        and geometry.stride == geometry.dilation == (1, 1)
        and geometry.groups == 1
        and geometry.input[1] % _PANEL == geometry.outputs % _PANEL == 0
        and max(geometry.padding) <= 2
        and min(geometry.input + geometry.output) > 0
    )


def winograd(geometry: Geometry) -> WinogradConvolution | None:
    """The convolution for a geometry; None where it does not fit or would not be faster than oneDNN's."""
    found = kernels()
    if found is None or not fits(geometry):
        return None
    made: WinogradConvolution = _prepared(found.library, geometry)
    return made if _declared(found.library).lowbit_fp32_winograd_pays() else None


@cache
def _declared(library: ctypes.CDLL) -> Any:
    declare(library, _SIGNATURES)
    return library


@lru_cache(maxsize=256)
def _prepared(library: ctypes.CDLL, geometry: Geometry) -> WinogradConvolution:
    return WinogradConvolution(_declared(library), geometry)
