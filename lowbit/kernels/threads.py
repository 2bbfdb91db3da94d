"""One OpenMP runtime for Paddle and for the kernels: two in one process would fight for the processors."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_NAME = "libiomp5.so"


@cache
def runtime() -> ctypes.CDLL | None:
    """The one in Paddle's wheel; None where there is none. It is loaded, not started: Paddle sets it up."""
    paddle = find_spec("paddle")
    if paddle is None or paddle.origin is None:
        return None
    path = Path(paddle.origin).parent / "libs" / _NAME
    return ctypes.CDLL(str(path)) if path.is_file() else None


def share_threads(library: ctypes.CDLL) -> None:
    """Let the kernels work on the runtime's threads, as many as Paddle uses at the time (OMP_NUM_THREADS)."""
    found = runtime()
    if found is not None:
        library.lowbit_use_threads(
            *(
                ctypes.cast(getattr(found, name), ctypes.c_void_p)
                for name in ("GOMP_parallel", "omp_get_max_threads")
            )
        )
