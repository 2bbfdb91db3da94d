"""Tensors to be written by a kernel, large ones in large pages.

Paddle gives the memory of large tensors back to the system as soon as they are unused, and gets it anew, page
by page, for the next ones: of a training step on a CPU that is a tenth. In pages of 2 MB it is next to
nothing, and takes no more memory.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache

import paddle
from paddle import Tensor

_WORTH_IT = 4 << 20  # bytes; smaller tensors are kept for reuse as it is
_PAGE = 4096
_MADV_HUGEPAGE = 14  # of Linux's mman.h


def new_tensor(shape: Sequence[int], dtype: str | paddle.dtype = "float32") -> Tensor:
    """A tensor whose values are yet to be written, all of them.

    >>> new_tensor([2, 3]).shape
    [2, 3]
    """
    tensor = paddle.empty(shape, dtype)
    size = tensor.size * tensor.element_size()
    if size >= _WORTH_IT and tensor.place.is_cpu_place() and (advise := _madvise()) is not None:
        start = -(-tensor.data_ptr() // _PAGE) * _PAGE
        # Advice only: a system that knows no large pages says so, and nothing is different.
        advise(start, (tensor.data_ptr() + size - start) // _PAGE * _PAGE, _MADV_HUGEPAGE)
    return tensor


@cache
def _madvise():
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return function
