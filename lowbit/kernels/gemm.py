"""Convolutions and matrix products of small integers: the bindings of csrc/gemm/gemm.h.

`INTEGER_SCALES` is the one table of the scales that the operands of an integer product may have. A product
runs in integers if its scales are constant along what it sums over, and so come out of the sum. The letters
are those of `lowbit.numerics.Granularity`: of an activation or a gradient N is the sample and H, W the pixel;
of a weight N is the output channel and C the input channel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from lowbit.kernels.library import ADDRESS, Signatures, declare, kernels

# layer type -> product -> operand -> the letters that may own a scale. A sum may be split so that each part
# has one scale: per sample (N of grad_weight), or per pixel before the kernel's taps are added (H and W of
# grad_input). Fewer letters are allowed, too: what more values share is constant along the sum all the more.
_CONVOLUTION = {
    "forward": {"input": "N", "weight": "N"},
    "grad_input": {"grad_output": "NHW", "weight": "C"},
    "grad_weight": {"grad_output": "NC", "input": "NC"},
}
INTEGER_SCALES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "Conv2D": _CONVOLUTION,
    # A transposed convolution's forward is a convolution's grad_input, and the other way round.
    "Conv2DTranspose": _CONVOLUTION
    | {
        "forward": {"input": "NHW", "weight": "N"},
        "grad_input": {"grad_output": "N", "weight": "C"},
    },
    # Linear has no taps: every row of its input is a separate sum.
    "Linear": _CONVOLUTION | {"forward": {"input": "NHW", "weight": "N"}},
}
SUMS_OVER = {
    "forward": "the input channels and the kernel",
    "grad_input": "the output channels",
    "grad_weight": "the samples and the pixels",
}


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Everything that a prepared convolution is made for; `padding` is top, bottom, left, right."""

    input: tuple[int, int, int, int]
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def output(self) -> tuple[int, int, int, int]:
        """The shape of Y."""
        batch, _, height, width = self.input
        top, bottom, left, right = self.padding
        sides = [
            (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
            for size, before, after, dilation, kernel, stride in (
                (height, top, bottom, self.dilation[0], self.kernel[0], self.stride[0]),
                (width, left, right, self.dilation[1], self.kernel[1], self.stride[1]),
            )
        ]
        return (batch, self.outputs, sides[0], sides[1])

    @property
    def weight(self) -> tuple[int, ...]:
        """The shape of W as oneDNN wants it: with the groups in front."""
        per_group = (self.input[1] // self.groups, *self.kernel)
        if self.groups == 1:
            return (self.outputs, *per_group)
        return (self.groups, self.outputs // self.groups, *per_group)


class Operand(ctypes.Structure):
    """Integers at an address (int8, or uint8 where `lowest` is not negative), their bounds and their scales.

    `scale` is the address of fp32 scales; `of_n`, `of_c` and `of_pixel` are their strides along an axis, 0
    where the axis shares a scale. A weight's n is its output channel, its c the input channel.

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
        integers: int | None,
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


class Multiples(NamedTuple):
    """Addresses of integers: their lowest 16 bits, and the 8 bits above, without which they are int16."""

    low: int
    high: int | None = None


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
    _check_scales("forward", x, w)
    _library().lowbit_forward(shape_of(geometry), x, w, bias, y, sums)


def gives_multiples(geometry: Geometry, x: Operand, w: Operand) -> bool:
    """Whether `forward_multiples` computes this product.

    >>> gives_multiples(geometry, x, w)
    """
    return bool(_library().lowbit_forward_multiples(shape_of(geometry), x, w, None))


def forward_multiples(geometry: Geometry, x: Operand, w: Operand, multiples: Multiples) -> bool:
    """The exact sums of Y, multiples of its scales; False where these bits do not hold all of them.

    >>> forward_multiples(geometry, x, w, Multiples(low.data_ptr(), high.data_ptr()))
    """
    _check_scales("forward", x, w)
    return bool(_library().lowbit_forward_multiples(shape_of(geometry), x, w, by_reference(multiples)))


def by_reference(multiples: Multiples | None) -> Any:
    """As an argument of a C function."""
    return None if multiples is None else ctypes.byref(CMultiples(*multiples))


def grad_input(
    geometry: Geometry, dy: Operand, w: Operand, dx: int | None, *, sums: int | None = None
) -> None:
    """dX from dY (scales by n, or by pixel) and W (by input channel); or only the int64 sums.

    >>> grad_input(geometry, dy, w, dx.data_ptr())
    """
    _check_scales("grad_input", dy, w)
    _library().lowbit_grad_input(shape_of(geometry), dy, w, dx, sums)


def grad_weight(
    geometry: Geometry, dy: Operand, x: Operand, dw: int | None, *, sums: int | None = None
) -> None:
    """dW from dY and X (both with scales by c, or n, or both); or only the int64 sums.

    >>> grad_weight(geometry, dy, x, dw.data_ptr())
    """
    _check_scales("grad_weight", dy, x)
    _library().lowbit_grad_weight(shape_of(geometry), dy, x, dw, sums)


def multiplications(geometry: Geometry, product: str, first: Operand, second: Operand) -> int:
    """The number of multiplications of a product: one per term of its sums, or fewer with Winograd.

    >>> multiplications(geometry, "forward", x, w)
    """
    number = _PRODUCTS.index(product)
    return _library().lowbit_multiplications(shape_of(geometry), number, first, second)


class _Geometry(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "channels", "height", "width", "outputs", "kernel_h", "kernel_w"),
            *("stride_h", "stride_w", "pad_top", "pad_bottom", "pad_left", "pad_right"),
            *("dilation_h", "dilation_w", "groups"),
        )
    ]


class CMultiples(ctypes.Structure):
    """lowbit_multiples of csrc/common/common.h."""

    _fields_ = [("low", ctypes.c_void_p), ("high", ctypes.c_void_p)]


SHAPE, _OPERAND = ctypes.POINTER(_Geometry), ctypes.POINTER(Operand)
MULTIPLES: Any = ctypes.POINTER(CMultiples)
_PRODUCTS = ("forward", "grad_input", "grad_weight")
_SIGNATURES: Signatures = {
    "lowbit_forward": (ctypes.c_int, [SHAPE, _OPERAND, _OPERAND, ADDRESS, ADDRESS, ADDRESS]),
    "lowbit_forward_multiples": (ctypes.c_int32, [SHAPE, _OPERAND, _OPERAND, MULTIPLES]),
    "lowbit_grad_input": (ctypes.c_int, [SHAPE, _OPERAND, _OPERAND, ADDRESS, ADDRESS]),
    "lowbit_grad_weight": (ctypes.c_int, [SHAPE, _OPERAND, _OPERAND, ADDRESS, ADDRESS]),
    "lowbit_multiplications": (ctypes.c_int64, [SHAPE, ctypes.c_int32, _OPERAND, _OPERAND]),
}


@cache
def _library() -> ctypes.CDLL:
    found = kernels()
    assert found is not None  # callers have asked
    library = found.library
    declare(library, _SIGNATURES)
    return library


@cache
def shape_of(geometry: Geometry) -> _Geometry:
    """lowbit_geometry of csrc/gemm/gemm.h."""
    if min(geometry.output) < 1:
        raise ValueError(f"the output would have the shape {list(geometry.output)}: {geometry}")
    if geometry.input[1] % geometry.groups or geometry.outputs % geometry.groups:
        raise ValueError(f"{geometry.groups} groups do not divide the channels: {geometry}")
    return _Geometry(
        *geometry.input, geometry.outputs, *geometry.kernel, *geometry.stride, *geometry.padding,
        *geometry.dilation, geometry.groups,
    )  # fmt: skip


def _check_scales(product: str, *operands: Operand) -> None:
    for (name, allowed), operand in zip(INTEGER_SCALES["Conv2D"][product].items(), operands, strict=True):
        for letter, axis in (("N", "of_n"), ("C", "of_c"), ("H", "of_pixel")):
            if letter not in allowed and getattr(operand, axis):
                raise ValueError(f"{name} has scales along an axis that is summed over ({axis})")
