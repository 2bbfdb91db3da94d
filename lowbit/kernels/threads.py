"""One OpenMP runtime for Paddle and for the kernels: two in one process would fight for the processors."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_PADDLES = "libiomp5.so"
_COMPILERS = "libgomp.so.1"


@cache
def runtime() -> ctypes.CDLL | None:
    """The one in Paddle's wheel. It is loaded, not started: Paddle sets it up.

    Where the wheel has none (on ARM), the compiler's own, which a Paddle that was built there would use too;
    None where that is missing as well: the kernels then work on one thread.
    """
    paddle = find_spec("paddle")
    if paddle is None or paddle.origin is None:
        return None
    path = Path(paddle.origin).parent / "libs" / _PADDLES
    if path.is_file():
        return ctypes.CDLL(str(path))
    try:
        return ctypes.CDLL(_COMPILERS)
    except OSError:
        return None


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
