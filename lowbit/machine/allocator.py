"""Memory of large tensors given back as soon as it is unused: a training step's peak is what it needs.

The C library keeps freed pieces of up to 32 MB for itself, between others that are in use, and what fits into
none of them comes on top: a quarter of a step's peak. Smaller tensors are left to it, since new memory costs
time; see lowbit.kernels.large_pages for what that costs.
"""

from __future__ import annotations

import ctypes
import sys

from lowbit.kernels.large_pages import WORTH_IT

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def return_large_memory() -> bool:
    """From now on and in the whole process; False where the C library has no such setting."""
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return change is not None and bool(change(_M_MMAP_THRESHOLD, WORTH_IT))
