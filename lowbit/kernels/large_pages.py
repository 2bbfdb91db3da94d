"""Large pages for memory that is new: the system hands it out in pieces of 2 MB instead of 4 kB.

What a training step uses is given back and asked for anew all the time, and every page of it is a call into
the system: of a step on a CPU that is a tenth.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

WORTH_IT = 4 << 20  # bytes
_PAGE = 4096
_MADV_HUGEPAGE = 14  # of Linux's mman.h


def advise_large_pages(address: int, size: int) -> None:
    """Ask for large pages where this memory has not been touched yet. It stays what it is, and as much.

    Advice only: nothing happens where there is too little to be worth it, or the system has no large pages.
    """
    if size >= WORTH_IT and (advise := _madvise()) is not None:
        start = -(-address // _PAGE) * _PAGE
        advise(start, (address + size - start) // _PAGE * _PAGE, _MADV_HUGEPAGE)


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return function
