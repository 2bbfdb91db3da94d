"""1x1 convolutions of fp32 by the matrix library in Paddle's wheel (MKL), in NCHW as it is.

They are matrix products of every image. oneDNN's convolution changes the layout before and after, which pays
off for images of few pixels only; Paddle's own operator takes up to three times as long as the same library
called directly.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from lowbit.accel import onednn, onednn_objects
from lowbit.accel.process_settings import AVX2_PATH, SETTING
from lowbit.kernels.gemm import Geometry
from lowbit.machine.cpu import cpu_info

_ROWS, _PLAIN, _TRANSPOSED = 101, 111, 112  # of cblas.h
_FLOAT = 4  # bytes
_FEW_PIXELS = 128  # of an image: MKL is no faster than oneDNN below


def is_there() -> bool:
    """Whether the library is there and fast, and oneDNN for small images; on AMD it needs the AMD fix."""
    return _sgemm() is not None and onednn_objects.why_missing() is None


def fits(geometry: Geometry) -> bool:
    """Whether it is one matrix product per image, and the library `is_there`."""
    is_pointwise = geometry.kernel == geometry.stride == (1, 1) and not any(geometry.padding)
    # Without images nothing would be written.
    return is_pointwise and geometry.groups == 1 and min(geometry.input + geometry.output) > 0 and is_there()


@lru_cache(maxsize=onednn.KEPT)
def prepared(geometry: Geometry) -> PointwiseProducts:
    """The products of a geometry that `fits`; the last ones are kept."""
    return PointwiseProducts(geometry)


class PointwiseProducts:
    """The three products of a 1x1 convolution, of addresses of contiguous fp32 tensors.

    prepared(geometry).forward(x.data_ptr(), weight.data_ptr(), y.data_ptr())
    """

    def __init__(self, geometry: Geometry) -> None:
        images, inputs, height, width = geometry.input
        self._sizes = images, inputs, geometry.outputs, height * width
        self._sgemm = _sgemm()
        # dW is MKL's all the same.
        self._onednn = onednn.prepared(geometry) if 1 < height * width < _FEW_PIXELS else None

    def forward(self, x: int, weight: int, y: int) -> None:
        """Y, from X and W."""
        if self._onednn is not None:
            self._onednn.forward(x, weight, y)
            return
        images, inputs, outputs, pixels = self._sizes
        x_step, y_step = inputs * pixels * _FLOAT, outputs * pixels * _FLOAT
        for n in range(images):
            self._sgemm(
                *(_ROWS, _PLAIN, _PLAIN, outputs, pixels, inputs, 1.0, weight, inputs),
                *(x + n * x_step, pixels, 0.0, y + n * y_step, pixels),
            )

    def grad_input(self, dy: int, weight: int, dx: int) -> None:
        """dX, from dY and W."""
        if self._onednn is not None:
            self._onednn.grad_input(dy, weight, dx)
            return
        images, inputs, outputs, pixels = self._sizes
        if pixels == 1:  # one product for all images
            sizes = images, inputs, outputs
            self._sgemm(_ROWS, _PLAIN, _PLAIN, *sizes, 1.0, dy, outputs, weight, inputs, 0.0, dx, inputs)
            return
        dy_step, dx_step = outputs * pixels * _FLOAT, inputs * pixels * _FLOAT
        for n in range(images):
            self._sgemm(
                *(_ROWS, _TRANSPOSED, _PLAIN, inputs, pixels, outputs, 1.0, weight, inputs),
                *(dy + n * dy_step, pixels, 0.0, dx + n * dx_step, pixels),
            )

    def grad_weight(self, x: int, dy: int, dweight: int) -> None:
        """dW, from X and dY; images are added in order."""
        images, inputs, outputs, pixels = self._sizes
        if pixels == 1:
            sizes = outputs, inputs, images
            self._sgemm(_ROWS, _TRANSPOSED, _PLAIN, *sizes, 1.0, dy, outputs, x, inputs, 0.0, dweight, inputs)
            return
        dy_step, x_step = outputs * pixels * _FLOAT, inputs * pixels * _FLOAT
        for n in range(images):
            self._sgemm(
                *(_ROWS, _PLAIN, _TRANSPOSED, outputs, inputs, pixels, 1.0, dy + n * dy_step, pixels),
                *(x + n * x_step, pixels, float(n > 0), dweight, inputs),
            )


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
