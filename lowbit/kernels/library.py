"""The C++ library: finding it, and its functions on addresses of contiguous fp32 memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lowbit.errors import LowbitError
from lowbit.kernels.build import LIBRARY, SOURCES, fingerprint
from lowbit.kernels.threads import share_threads
from lowbit.machine.cpu import cannot_execute, chosen_processor

_REBUILD = "install lowbit again where there is a C++ compiler: pip install -e ."


class Layout(NamedTuple):
    """A tensor as [outer, channels, inner], where a scale belongs to a channel."""

    outer: int
    channels: int
    inner: int


class Levels(NamedTuple):
    """A grid's ends, and whether bounds reach below 0."""

    lowest: int
    highest: int
    signed: bool


class _Layout(ctypes.Structure):
    _fields_ = [("outer", ctypes.c_int64), ("channels", ctypes.c_int64), ("inner", ctypes.c_int64)]


class _Grid(ctypes.Structure):
    _fields_ = [("lowest", ctypes.c_float), ("highest", ctypes.c_float), ("is_signed", ctypes.c_int32)]


_ADDRESS, _FLAG, _TEXT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
_SIGNATURES = {
    "lowbit_fingerprint": (_TEXT, []),
    "lowbit_variants": (_TEXT, []),
    "lowbit_variant": (_TEXT, []),
    "lowbit_select_variant": (ctypes.c_int, [_TEXT]),
    "lowbit_use_threads": (None, [_ADDRESS] * 2),
    "lowbit_threads": (ctypes.c_int, []),
    "lowbit_quantize": (None, [_ADDRESS] * 4 + [_Layout, _Grid, _FLAG]),
    "lowbit_quantize_grad": (None, [_ADDRESS] * 6 + [_Layout, _Grid]),
    "lowbit_lsq_grad": (None, [_ADDRESS] * 5 + [_Layout, _Grid]),
}


class Kernels:
    """The functions of csrc/kernels.h, which says what they compute.

    They take addresses, such as `Tensor.data_ptr()` gives, of contiguous fp32 tensors that the caller keeps
    alive; None stands for "not wanted". Nothing is checked here.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        share_threads(library)

    @property
    def library(self) -> ctypes.CDLL:
        """For this room's other files, which declare the functions that they call."""
        return self._library

    @property
    def variants(self) -> list[str]:
        """The instruction sets that this processor can run, best first."""
        return self._library.lowbit_variants().decode().split()

    @property
    def variant(self) -> str:
        """The one in use."""
        return self._library.lowbit_variant().decode()

    def select_variant(self, name: str) -> None:
        """Use another instruction set: for tests and benchmarks, since all of them give the same bits."""
        if self._library.lowbit_select_variant(name.encode()):
            raise ValueError(f"this processor cannot run {name}; it can run {', '.join(self.variants)}")

    @property
    def threads(self) -> int:
        """How many the integer products work on: as many as Paddle."""
        return self._library.lowbit_threads()

    def quantize(
        self,
        x: int,
        y: int,
        scale: int,
        bound: int | None,
        layout: Layout,
        levels: Levels,
        *,
        integers: bool = False,
    ) -> None:
        """Values on the grid, or their integers."""
        self._library.lowbit_quantize(x, y, scale, bound, _Layout(*layout), _Grid(*levels), integers)

    def quantize_grad(
        self,
        x: int,
        dy: int,
        dx: int | None,
        scale: int,
        bound: int | None,
        dbound: int | None,
        layout: Layout,
        levels: Levels,
    ) -> None:
        """The straight-through gradient, and that of the bound."""
        self._library.lowbit_quantize_grad(x, dy, dx, scale, bound, dbound, _Layout(*layout), _Grid(*levels))

    def lsq_grad(
        self, x: int, dy: int, dx: int | None, step: int, dstep: int | None, layout: Layout, levels: Levels
    ) -> None:
        """LSQ's gradients, that of the step not yet multiplied by its pace."""
        self._library.lowbit_lsq_grad(x, dy, dx, step, dstep, _Layout(*layout), _Grid(*levels))


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
    if SOURCES.is_dir() and loaded._library.lowbit_fingerprint().decode() != fingerprint():
        return _Found(None, f"the C++ kernels were built from other sources than these; {_REBUILD}")
    chosen = chosen_processor()
    if chosen is not None and chosen.variant not in loaded.variants:
        return _Found(loaded, None, str(cannot_execute(chosen, f"kernels with {chosen.variant}")))
    if chosen is not None:
        loaded.select_variant(chosen.variant)
    return _Found(loaded, None)
