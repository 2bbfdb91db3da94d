"""The compiled library: finding and loading it, its instruction sets, its threads and its errors.

The bindings of its functions are in modules named after the folders of csrc/: `gemm` (with winograd/ and
depthwise/) and `unrounded`, `quantization` (quantize/), `norm` and `excitation` (norm/), `optimizer` and
`fp32_winograd`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lowbit.errors import LowbitError
from lowbit.kernels.build import LIBRARY, SOURCES, fingerprint
from lowbit.machine.cpu import cannot_execute, chosen_processor

_REBUILD = "install lowbit again where there is a C++ compiler: pip install -e ."
_OUT_OF_MEMORY = -1  # lowbit_status of csrc/common/common.h
_PADDLE_RUNTIME, _COMPILER_RUNTIME = "libiomp5.so", "libgomp.so.1"

ADDRESS = ctypes.c_void_p  # of contiguous memory; None for a null pointer
Signatures = Mapping[str, tuple[Any, Sequence[Any]]]  # function: (result type, argument types)


def declare(library: ctypes.CDLL, signatures: Signatures) -> None:
    """Declare functions that return a status: a negative one raises MemoryError or LowbitError.

    >>> declare(library, {"lowbit_scales": (ctypes.c_int, [ADDRESS, ADDRESS, ctypes.c_int64])})
    """
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes, function.errcheck = result, list(arguments), _check_status


def _check_status(status: int, function: Any, _: tuple) -> int:
    if status >= 0:
        return status
    if status == _OUT_OF_MEMORY:
        raise MemoryError(f"{function.__name__} ran out of memory; use a smaller batch or smaller images")
    raise LowbitError(
        f"the C++ kernel {function.__name__} failed with status {status}; "
        "`Global.executor: simulate` computes without it, and please report it"
    )


class Kernels:
    """The loaded library, shared by the bindings.

    >>> kernels().variants
    ['avx512vnni', 'avx512', 'avx2', 'baseline']
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name in ("lowbit_fingerprint", "lowbit_variants", "lowbit_variant"):
            getattr(library, name).restype = ctypes.c_char_p
        library.lowbit_select_variant.argtypes = [ctypes.c_char_p]
        library.lowbit_use_threads.restype = None
        library.lowbit_scratch_bytes.restype = ctypes.c_int64
        _share_threads(library)

    @property
    def library(self) -> ctypes.CDLL:
        """For the bindings, which declare the functions that they call."""
        return self._library

    @property
    def fingerprint(self) -> str:
        """The sources that it was built from; see `build.fingerprint`."""
        return self._library.lowbit_fingerprint().decode()

    @property
    def variants(self) -> list[str]:
        """The instruction sets that this processor can run, best first."""
        return self._library.lowbit_variants().decode().split()

    @property
    def variant(self) -> str:
        """The instruction set in use."""
        return self._library.lowbit_variant().decode()

    def select_variant(self, name: str) -> None:
        """Use another instruction set: for tests and benchmarks, since all of them give the same bits."""
        if self._library.lowbit_select_variant(name.encode()):
            raise ValueError(f"this processor cannot run {name}; it can run {', '.join(self.variants)}")

    @property
    def threads(self) -> int:
        """The number of threads that kernels use: as many as Paddle."""
        return self._library.lowbit_threads()

    def exchange_time(self) -> float:
        """Seconds that a cache line takes from one thread to another, now; 0 with one thread.

        Some 30 ns where their processors share a cache. A hypervisor may move them apart and together again:
        then it is 100 ns or more, and two threads gain less.
        """
        seconds = ctypes.c_double()
        _check_status(self._library.lowbit_exchange_time(ctypes.byref(seconds)), self.exchange_time, ())
        return seconds.value

    @property
    def scratch_bytes(self) -> int:
        """Memory that the threads hold for packed operands and the like; it shrinks after large layers."""
        return self._library.lowbit_scratch_bytes()


@cache
def openmp_runtime() -> ctypes.CDLL | None:
    """The OpenMP runtime of Paddle's wheel, which the kernels share: two would compete for the processors.

    It is loaded, not started: Paddle sets it up. Where the wheel has none (on ARM), the compiler's own, which
    a Paddle that was built there would use too; without one, kernels run on one thread.
    """
    paddle = find_spec("paddle")
    if paddle is None or paddle.origin is None:
        return None
    path = Path(paddle.origin).parent / "libs" / _PADDLE_RUNTIME
    if path.is_file():
        return ctypes.CDLL(str(path))
    try:
        return ctypes.CDLL(_COMPILER_RUNTIME)
    except OSError:
        return None


def _share_threads(library: ctypes.CDLL) -> None:
    """Run kernels on the runtime's threads, as many as Paddle uses at the time (OMP_NUM_THREADS)."""
    runtime = openmp_runtime()
    if runtime is not None:
        names = ("GOMP_parallel", "omp_get_max_threads", "omp_get_thread_num")
        library.lowbit_use_threads(*(ctypes.cast(getattr(runtime, name), ADDRESS) for name in names))


@dataclass(frozen=True)
class _Found:
    kernels: Kernels | None
    why_missing: str | None
    cannot_run: str | None = None  # the instruction set that LOWBIT_CPU asks for


def kernels() -> Kernels | None:
    """The library, loaded once; None when there is none that fits these sources (see `why_missing`).

    It uses the best instruction set of this processor, or that of the one that LOWBIT_CPU named when it was
    loaded; a LowbitError says if this machine cannot run that.
    """
    found = _find(LIBRARY)
    if found.cannot_run is not None:
        raise LowbitError(found.cannot_run)
    return found.kernels


def why_missing() -> str | None:
    """Why there are no kernels and what to do, in one line; None when they are there."""
    return _find(LIBRARY).why_missing


def runnable_variants() -> list[str]:
    """The instruction sets that this processor can run, best first, as it says itself; empty without kernels.

    LOWBIT_CPU has no part in it.
    """
    found = _find(LIBRARY).kernels
    return [] if found is None else found.variants


@cache
def _find(path: Path) -> _Found:
    if not path.is_file():
        return _Found(None, f"the C++ kernels were not built; {_REBUILD}")
    try:
        loaded = Kernels(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:  # for another processor, or without one of the functions
        return _Found(None, f"{path.name} does not load ({error}); {_REBUILD}")
    # A package may come without the sources; its library cannot be out of date then.
    if SOURCES.is_dir() and loaded.fingerprint != fingerprint():
        return _Found(None, f"the C++ kernels were built from other sources than these; {_REBUILD}")
    chosen = chosen_processor()
    if chosen is not None and chosen.variant not in loaded.variants:
        return _Found(loaded, None, str(cannot_execute(chosen, f"kernels with {chosen.variant}")))
    if chosen is not None:
        loaded.select_variant(chosen.variant)
    return _Found(loaded, None)


LARGE = 4 << 20  # bytes, from which on large pages are worth asking for
_PAGE = 4096
_MADV_HUGEPAGE = 14  # of Linux's mman.h


def advise_large_pages(address: int, size: int) -> None:
    """Ask for large pages where this memory has not been touched yet. It stays what it is, and as much.

    Advice only: nothing happens where the memory is not LARGE, or the system has no large pages.
    """
    if size >= LARGE and (advise := _madvise()) is not None:
        start = -(-address // _PAGE) * _PAGE
        advise(start, (address + size - start) // _PAGE * _PAGE, _MADV_HUGEPAGE)


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return function
