"""Settings of the whole process that make training faster: the AMD fix, glibc's allocator, Python's
garbage collector.

The AMD fix: Paddle's matrix library (an old MKL) takes a slow path on AMD processors unless told not to.
`MKL_DEBUG_CPU_TYPE=5` makes it take its AVX2 path; ResNet18 trains 2.7 times faster with it on a Zen 3.
The library reads the setting at its first matrix product, so it must be in the environment before that;
child processes inherit it. On Intel the library chooses well by itself, and the setting could only hold it
back from AVX-512, so it is never made there. It changes the last bits of results, so checkpoints record it
(`training/resume.py`).

The allocator: every page that the system hands out again costs a call into it, and it fills it with zeros.
glibc gives pieces of more than 32 MB back at once, unless it is told to take none from the system for them
alone: of a ResNet18 step at 224² on a CPU that was a quarter. `keep_freed_memory` tells it so.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from lowbit.errors import LowbitError
from lowbit.machine.cpu import CpuInfo, check_executable, cpu_info

SETTING = "MKL_DEBUG_CPU_TYPE"
AVX2_PATH = "5"
SWITCH = "LOWBIT_AMD_FIX"

_ON = ("", "1", "on", "true", "yes")
_OFF = ("0", "off", "false", "no")


class FixStatus(Enum):
    APPLIED = "applied"
    ALREADY_SET = "already set"  # by the user, or by the lowbit process that started this one
    NOT_NEEDED = "not needed"
    SWITCHED_OFF = "switched off"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class AmdFix:
    """What was done about the matrix library, and the line that says so."""

    status: FixStatus
    message: str

    @property
    def worth_logging(self) -> bool:
        """Everything but the normal case of a processor that needs nothing."""
        return self.status is not FixStatus.NOT_NEEDED


def apply_amd_fix(cpu: CpuInfo | None = None, environ: MutableMapping[str, str] | None = None) -> AmdFix:
    """Make the matrix library take its fast path on AMD; call it before the first matrix product.

    >>> apply_amd_fix().message  # doctest: +SKIP
    'AMD fix applied: MKL_DEBUG_CPU_TYPE=5 (LOWBIT_AMD_FIX=0 switches it off)'
    """
    environ = os.environ if environ is None else environ
    fix = decide_amd_fix(cpu, environ)
    if fix.status is FixStatus.APPLIED:
        if cpu is None:
            check_executable("avx2", "fma")
        environ[SETTING] = AVX2_PATH
    return fix


def decide_amd_fix(cpu: CpuInfo | None = None, environ: MutableMapping[str, str] | None = None) -> AmdFix:
    """What `apply_amd_fix` would do, without doing it."""
    cpu = cpu or cpu_info()
    environ = os.environ if environ is None else environ
    switch = environ.get(SWITCH, "").strip().lower()
    if switch not in _ON + _OFF:
        raise LowbitError(
            f"{SWITCH}={environ[SWITCH]} is not understood; use 0 to switch the AMD fix off, 1 for on"
        )
    if value := environ.get(SETTING):
        in_place = cpu.is_amd and value == AVX2_PATH
        said = "AMD fix in place" if in_place else "matrix library"
        return AmdFix(
            FixStatus.ALREADY_SET, f"{said}: {SETTING}={value} is in the environment, left as it is"
        )
    if not cpu.is_amd:
        vendor = cpu.vendor or "of unknown vendor"
        return AmdFix(FixStatus.NOT_NEEDED, f"AMD fix not needed: this processor is {vendor}")
    if switch in _OFF:
        return AmdFix(
            FixStatus.SWITCHED_OFF,
            f"AMD fix switched off by {SWITCH}={environ[SWITCH]}: matrix products take the slow path",
        )
    if not (cpu.has("avx2") and cpu.has("fma")):  # the forced path would end the process: illegal instruction
        return AmdFix(
            FixStatus.IMPOSSIBLE,
            "AMD fix not applied: this AMD processor has no AVX2 and FMA, which it needs",
        )
    return AmdFix(FixStatus.APPLIED, f"AMD fix applied: {SETTING}={AVX2_PATH} ({SWITCH}=0 switches it off)")


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


@contextmanager
def without_collecting_what_is_there() -> Iterator[None]:
    """Inside the `with`, Python's garbage collector leaves the objects alone that exist when it begins.

    Paddle and a network are hundreds of thousands of objects that stay: going through them again and again
    takes a few percent of a training step. What is created inside is collected as ever, and afterwards
    everything.
    """
    others = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not others:  # what the caller had frozen would be let go, too
            gc.unfreeze()


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if library is not None and hasattr(library, "mallopt") else None
