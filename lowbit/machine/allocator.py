"""Freed memory kept for the next tensors of a training step, instead of given back and asked for anew.

Every page that the system hands out anew costs a call into it, and it fills it with zeros: of a step on a CPU
that is a tenth. glibc gives pieces of more than about 10 MB back at once; up to 32 MB it can be told to keep.
What is larger is for lowbit.kernels.large_pages.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_MOST = 32 << 20  # glibc allows no more


def keep_freed_memory() -> bool:
    """From now on and in the whole process; False where the C library has no such setting."""
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return change is not None and bool(
        change(_M_MMAP_THRESHOLD, _MOST) and change(_M_TRIM_THRESHOLD, 2**31 - 1)
    )
