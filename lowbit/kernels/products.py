"""The integer products of csrc/products.h, on addresses of contiguous memory.

Operands are small integers, a byte each, exact sums of their products leave as fp32; the header says what
each function computes and which scales it takes.
"""

from __future__ import annotations

import ctypes
from functools import cache

from lowbit.kernels.library import kernels
from lowbit.kernels.onednn import Geometry


class Operand(ctypes.Structure):
    """The address of integers (int8, or uint8 where the lowest is not below 0), their bounds, their scales.

    `scale` is the address of fp32 scales, `of_n`, `of_c` and `of_pixel` how far apart they lie along an axis:
    0 where the axis shares one. A weight's n is its output channel, its c the input channel.

    >>> weight = Operand(integers=w.data_ptr(), lowest=-8, highest=7, scale=s.data_ptr(), of_n=1)
    """

    _fields_ = [
        ("integers", ctypes.c_void_p),
        ("lowest", ctypes.c_int32),
        ("highest", ctypes.c_int32),
        ("scale", ctypes.c_void_p),
        ("of_n", ctypes.c_int64),
        ("of_c", ctypes.c_int64),
        ("of_pixel", ctypes.c_int64),
    ]

    def __init__(
        self,
        *,
        integers: int,
        lowest: int,
        highest: int,
        scale: int | None = None,
        of_n: int = 0,
        of_c: int = 0,
        of_pixel: int = 0,
    ) -> None:
        bottom, top = (-128, 127) if lowest < 0 else (0, 255)
        if not bottom <= lowest <= highest <= top:
            raise ValueError(f"integers from {lowest} to {highest} do not lie in a byte")
        super().__init__(integers, lowest, highest, scale, of_n, of_c, of_pixel)


def forward(
    geometry: Geometry,
    x: Operand,
    w: Operand,
    y: int | None,
    *,
    bias: int | None = None,
    sums: int | None = None,
) -> None:
    """Y from X (scales by n) and W (by output channel) with the bias in fp32; or only the int64 sums.

    >>> forward(geometry, x, w, y.data_ptr(), bias=bias.data_ptr())
    """
    _share("x", of_c=x.of_c, of_pixel=x.of_pixel)
    _share("w", of_c=w.of_c, of_pixel=w.of_pixel)
    _call("lowbit_forward", geometry, x, w, bias, y, sums)


def grad_input(
    geometry: Geometry, dy: Operand, w: Operand, dx: int | None, *, sums: int | None = None
) -> None:
    """dX from dY (scales by n, or by pixel) and W (by input channel); or only the int64 sums.

    >>> grad_input(geometry, dy, w, dx.data_ptr())
    """
    _share("dy", of_c=dy.of_c)
    _share("w", of_n=w.of_n, of_pixel=w.of_pixel)
    _call("lowbit_grad_input", geometry, dy, w, dx, sums)


def grad_weight(
    geometry: Geometry, dy: Operand, x: Operand, dw: int | None, *, sums: int | None = None
) -> None:
    """dW from dY and X (both with scales by c, or n, or both); or only the int64 sums.

    >>> grad_weight(geometry, dy, x, dw.data_ptr())
    """
    _share("dy", of_pixel=dy.of_pixel)
    _share("x", of_pixel=x.of_pixel)
    _call("lowbit_grad_weight", geometry, dy, x, dw, sums)


def multiplications(geometry: Geometry, product: str, first: Operand, second: Operand) -> int:
    """How many a product takes: one for every term of its sums, or fewer by Winograd's transforms.

    >>> multiplications(geometry, "forward", x, w)
    """
    library = _library()
    return library.lowbit_multiplications(_shape(geometry), _PRODUCTS.index(product), first, second)


class _Geometry(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "channels", "height", "width", "outputs", "kernel_h", "kernel_w"),
            *("stride_h", "stride_w", "pad_top", "pad_bottom", "pad_left", "pad_right"),
            *("dilation_h", "dilation_w", "groups"),
        )
    ]


_ADDRESS, _SHAPE, _INTEGERS = ctypes.c_void_p, ctypes.POINTER(_Geometry), ctypes.POINTER(Operand)
_PRODUCTS = ("forward", "grad_input", "grad_weight")
_ARGUMENTS = {
    "lowbit_forward": [_SHAPE, _INTEGERS, _INTEGERS, _ADDRESS, _ADDRESS, _ADDRESS],
    "lowbit_grad_input": [_SHAPE, _INTEGERS, _INTEGERS, _ADDRESS, _ADDRESS],
    "lowbit_grad_weight": [_SHAPE, _INTEGERS, _INTEGERS, _ADDRESS, _ADDRESS],
}


@cache
def _library() -> ctypes.CDLL:
    library = kernels().library
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = ctypes.c_int, arguments
    count = library.lowbit_multiplications
    count.restype, count.argtypes = ctypes.c_int64, [_SHAPE, ctypes.c_int32, _INTEGERS, _INTEGERS]
    return library


@cache
def _shape(geometry: Geometry) -> _Geometry:
    if min(geometry.output) < 1:
        raise ValueError(f"the output would have the shape {list(geometry.output)}: {geometry}")
    if geometry.input[1] % geometry.groups or geometry.outputs % geometry.groups:
        raise ValueError(f"{geometry.groups} groups do not divide the channels: {geometry}")
    return _Geometry(
        *geometry.input, geometry.outputs, *geometry.kernel, *geometry.stride, *geometry.padding,
        *geometry.dilation, geometry.groups,
    )  # fmt: skip


def _share(name: str, **steps: int) -> None:
    for axis, step in steps.items():
        if step:
            raise ValueError(f"{name} has scales along an axis that is summed over ({axis})")


def _call(name: str, geometry: Geometry, first: Operand, second: Operand, *addresses: int | None) -> None:
    if getattr(_library(), name)(_shape(geometry), first, second, *addresses):
        raise MemoryError(f"no memory for the product {name} of {geometry}")
