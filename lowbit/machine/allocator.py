"""Freed memory kept for the next tensors of a training step, instead of given back and asked for anew.

Every page that the system hands out anew costs a call into it, and it fills it with zeros. glibc gives
pieces of more than 32 MB back at once, unless it is told to take none from the system for them alone: of a
ResNet18 step at 224² on a CPU that was a quarter.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """From now on and in the whole process; False where the C library has no such setting."""
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return change is not None and bool(change(_M_MMAP_MAX, 0) and change(_M_TRIM_THRESHOLD, 2**31 - 1))
