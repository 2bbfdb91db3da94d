"""What the processor's multiplying instructions allow, measured on registers: the roof over every kernel."""

from __future__ import annotations

import ctypes
import time
from functools import cache

from lowbit.kernels import kernels

_BITS = {"oneDNN fp32": 32, "W8A8G8": 8, "W4A4G4": 4, "W4A4G4 fast": 4}  # of the products
_TURNS, _TRIES = 200_000, 5


@cache
def ceilings() -> dict[str, float]:
    """Multiply-adds a second of one thread, by side; none without kernels that are more than portable."""
    found = kernels()
    if found is None:
        return {}
    function = found.library.lowbit_ceiling
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int32, ctypes.c_int64]
    speeds = {name: _speed(function, bits) for name, bits in _BITS.items()}
    return {name: speed for name, speed in speeds.items() if speed}


def _speed(function: ctypes._CFuncPtr, bits: int) -> float:
    best = 0.0
    for _ in range(_TRIES):
        start = time.perf_counter()
        done = function(bits, _TURNS) * _TURNS
        best = max(best, done / (time.perf_counter() - start))
    return best
