"""Gradients of 1x1 convolutions by the matrix library in Paddle's wheel (MKL), in NCHW as it is.

They are matrix products of every image, which need no other layout; oneDNN's convolution changes it before
and after.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from lowbit.accel.process_settings import AVX2_PATH, SETTING
from lowbit.kernels.gemm import Geometry
from lowbit.machine.cpu import cpu_info

_ROWS, _PLAIN, _TRANSPOSED = 101, 111, 112  # of cblas.h
_FLOAT = 4  # bytes


def fits(geometry: Geometry) -> bool:
    """Whether it is one matrix product per image, and the library is there and fast.

    On AMD it is slow without the AMD fix.
    """
    is_pointwise = geometry.kernel == geometry.stride == (1, 1) and not any(geometry.padding)
    # Without images nothing would be written.
    return (
        is_pointwise
        and geometry.groups == 1
        and min(geometry.input + geometry.output) > 0
        and _sgemm() is not None
    )


def grad_input(geometry: Geometry, dy: int, weight: int, dx: int) -> None:
    """dX, from dY and W, of a geometry that `fits`; addresses of contiguous fp32 tensors.

    grad_input(geometry, dy.data_ptr(), weight.data_ptr(), dx.data_ptr())
    """
    images, inputs, outputs, pixels = _sizes(geometry)
    sgemm = _sgemm()
    if pixels == 1:  # one product for all images
        sizes = images, inputs, outputs
        sgemm(_ROWS, _PLAIN, _PLAIN, *sizes, 1.0, dy, outputs, weight, inputs, 0.0, dx, inputs)
        return
    dy_step, dx_step = outputs * pixels * _FLOAT, inputs * pixels * _FLOAT
    for n in range(images):
        sgemm(
            *(_ROWS, _TRANSPOSED, _PLAIN, inputs, pixels, outputs, 1.0, weight, inputs),
            *(dy + n * dy_step, pixels, 0.0, dx + n * dx_step, pixels),
        )


def grad_weight(geometry: Geometry, x: int, dy: int, dweight: int) -> None:
    """dW, from X and dY, likewise; images are added in order."""
    images, inputs, outputs, pixels = _sizes(geometry)
    sgemm = _sgemm()
    if pixels == 1:
        sizes = outputs, inputs, images
        sgemm(_ROWS, _TRANSPOSED, _PLAIN, *sizes, 1.0, dy, outputs, x, inputs, 0.0, dweight, inputs)
        return
    dy_step, x_step = outputs * pixels * _FLOAT, inputs * pixels * _FLOAT
    for n in range(images):
        sgemm(
            *(_ROWS, _PLAIN, _TRANSPOSED, outputs, inputs, pixels, 1.0, dy + n * dy_step, pixels),
            *(x + n * x_step, pixels, float(n > 0), dweight, inputs),
        )


def _sizes(geometry: Geometry) -> tuple[int, int, int, int]:
    images, inputs, height, width = geometry.input
    return images, inputs, geometry.outputs, height * width


@cache
def _sgemm() -> Any:
    """cblas_sgemm, or None."""
    import paddle

    path = Path(paddle.__file__).parent / "libs" / "libmklml_intel.so"
    if not path.is_file() or (cpu_info().is_amd and os.environ.get(SETTING) != AVX2_PATH):
        return None
    function = ctypes.CDLL(str(path)).cblas_sgemm
    function.restype = None
    number, matrix = [ctypes.c_float], [ctypes.c_void_p, ctypes.c_int]
    kinds: list[Any] = [ctypes.c_int] * 6
    function.argtypes = kinds + number + matrix + matrix + number + matrix
    return function
