"""Freed memory kept for the next tensors of a training step, instead of given back and requested again.

Every page that the system hands out again costs a call into it, and it fills it with zeros. glibc gives
pieces of more than 32 MB back at once, unless it is told to take none from the system for them alone: of a
ResNet18 step at 224² on a CPU that was a quarter.
"""

from __future__ import annotations

import ctypes
import sys
import threading

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
_MMAP_MAX = 65536  # glibc's default
_MMAP_THRESHOLD = 32 << 20  # where glibc's own threshold ends up in a process that frees large pieces

_lock = threading.Lock()
_holders = 0


def keep_freed_memory() -> bool:
    """From now on and in the whole process; False where the C library has no such setting.

    Until `return_freed_memory` has been called as many times.
    """
    global _holders
    library = _glibc()
    if library is None:
        return False
    with _lock:
        _holders += 1
        return bool(library.mallopt(_M_MMAP_MAX, 0) and library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def return_freed_memory() -> None:
    """Undo one `keep_freed_memory`: after the last, freed memory goes back to the system as glibc sees fit.

    Its settings cannot be read, so that they become its defaults: any that were made by MALLOC_ variables of
    the environment are not restored.
    """
    global _holders
    library = _glibc()
    if library is None:
        return
    with _lock:
        _holders = max(_holders - 1, 0)
        if not _holders:
            library.mallopt(_M_MMAP_MAX, _MMAP_MAX)
            library.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
            library.mallopt(_M_TRIM_THRESHOLD, 2 * _MMAP_THRESHOLD)
            library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if library is not None and hasattr(library, "mallopt") else None
