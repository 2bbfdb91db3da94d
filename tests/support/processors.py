"""What this machine computes exactly, and other processors' decisions (LOWBIT_CPU) for tests.

The engines see this machine, whatever LOWBIT_CPU says. Its instructions are asked of the processor itself,
since /proc/cpuinfo is the host's under qemu.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lowbit.accel.process_settings import SETTING
from lowbit.deploy.onnx.targets import TARGETS, Target
from lowbit.kernels import kernels, runnable_variants
from lowbit.machine import cpu_info, hardware_info
from lowbit.machine.cpu import CPU_VARIABLE, PROCESSORS

THIS_MACHINE = "this machine"
_VNNI = {"amx", "avx512vnni", "avxvnni"}
NO_VNNI = "this processor has no VNNI: its engines' 8-bit products saturate or lose a bit"


def has_vnni() -> bool:
    """Whether the engines find VNNI here."""
    variants = runnable_variants()
    return bool(_VNNI & set(variants)) if variants else hardware_info().has_vnni


def exact_targets() -> list[Target]:
    """The targets whose files the engines of this machine compute exactly."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    return list(TARGETS) if has_vnni() or not x86 else ["avx2"]


def skip_unless_exact(target: Target) -> None:
    if target not in exact_targets():
        pytest.skip(f"{NO_VNNI}; the form for {target} needs it")


# For what lowbit refuses to run without VNNI: LOWBIT_CPU, given to all tests, counts as well.
needs_vnni = pytest.mark.skipif(
    not (has_vnni() and cpu_info().has_vnni),
    reason=f"{CPU_VARIABLE} names a processor without VNNI" if has_vnni() else NO_VNNI,
)


@contextmanager
def computing_as(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Here and in processes that the test starts, lowbit decides and computes as on this processor.

    The test is skipped where this machine lacks the instructions.
    """
    monkeypatch.setenv(SETTING, "")  # so that what the AMD fix writes is removed after the test, too
    monkeypatch.delenv(SETTING)
    if name == THIS_MACHINE:
        yield
        return
    variant = PROCESSORS[name].variant
    if variant in _VNNI and not has_vnni():
        pytest.skip(NO_VNNI)
    if runnable_variants() and variant not in runnable_variants():
        pytest.skip(f"this machine cannot run kernels with {variant}, which {name} would use")
    found = kernels()  # before LOWBIT_CPU: it is read when the library is loaded
    before = found.variant if found else None
    monkeypatch.setenv(CPU_VARIABLE, name)
    if found:
        found.select_variant(variant)
    yield
    if found:
        found.select_variant(before)
