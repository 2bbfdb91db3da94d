"""grad_weight of depthwise convolutions in fp32: the binding of csrc/depthwise/fp32_depthwise.h."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from lowbit.kernels.gemm import SHAPE, Geometry, shape_of
from lowbit.kernels.library import ADDRESS, declare, kernels


def fits(geometry: Geometry) -> bool:
    """Whether the kernel can compute it: as many groups as channels and outputs, more than one.

    >>> sizes = dict(kernel=(3, 3), stride=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1), groups=8)
    >>> [fits(Geometry(input=(2, 8, 5, 5), outputs=outputs, **sizes)) for outputs in (8, 16)]
    [True, False]
    """
    is_depthwise = 1 < geometry.groups == geometry.input[1] == geometry.outputs
    return is_depthwise and kernels() is not None and min(geometry.input + geometry.output) > 0


def grad_weight(
    geometry: Geometry, x: int, dy: int, dweight: int, *, kind: str = "float32", scale: float = 1.0
) -> None:
    """dW, from X and dY, of a geometry that `fits`; addresses of contiguous tensors.

    X is `float32`, or `int8` or `uint8` times a scale.

    grad_weight(geometry, x.data_ptr(), dy.data_ptr(), dweight.data_ptr())
    """
    found = kernels()
    assert found is not None  # callers have asked
    function = _declared(found.library).lowbit_fp32_depthwise_grad_weight
    function(shape_of(geometry), x, _KINDS.index(kind), scale, dy, dweight)


_KINDS = ("float32", "int8", "uint8")  # lowbit_number of fp32_depthwise.h
_ARGUMENTS = [SHAPE, ADDRESS, ctypes.c_int32, ctypes.c_float, ADDRESS, ADDRESS]


@cache
def _declared(library: ctypes.CDLL) -> Any:
    declare(library, {"lowbit_fp32_depthwise_grad_weight": (ctypes.c_int, _ARGUMENTS)})
    return library
