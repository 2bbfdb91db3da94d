"""The AMD fix is made where it helps, and freed memory is kept and given back."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from lowbit.accel import process_settings
from lowbit.accel.process_settings import (
    FixStatus,
    apply_amd_fix,
    decide_amd_fix,
    keep_freed_memory,
    return_freed_memory,
    without_collecting_what_is_there,
)
from lowbit.errors import LowbitError
from lowbit.machine.cpu import PROCESSORS, CpuInfo


def cpu(vendor: str, features: str | None = "avx2 fma") -> CpuInfo:
    known = None if features is None else frozenset(features.split())
    return CpuInfo(vendor=vendor, model="test", cores=2, machine_cores=2, memory=2**30, features=known)


AMD = cpu("AuthenticAMD")
INTEL = cpu("GenuineIntel")


def test_applied_on_amd():
    environ: dict[str, str] = {}
    fix = apply_amd_fix(AMD, environ)
    assert fix.status is FixStatus.APPLIED
    assert environ == {"MKL_DEBUG_CPU_TYPE": "5"}
    assert "MKL_DEBUG_CPU_TYPE=5" in fix.message and "LOWBIT_AMD_FIX=0" in fix.message


@pytest.mark.parametrize("other", [INTEL, cpu(""), cpu("HygonGenuine")])
def test_never_on_another_vendor(other):
    environ = {"LOWBIT_AMD_FIX": "1"}
    fix = apply_amd_fix(other, environ)
    assert fix.status is FixStatus.NOT_NEEDED and not fix.worth_logging
    assert "MKL_DEBUG_CPU_TYPE" not in environ


@pytest.mark.parametrize("off", ["0", "off", "False", " no "])
def test_the_switch(off):
    environ = {"LOWBIT_AMD_FIX": off}
    fix = apply_amd_fix(AMD, environ)
    assert fix.status is FixStatus.SWITCHED_OFF and fix.worth_logging
    assert "slow path" in fix.message
    assert environ == {"LOWBIT_AMD_FIX": off}


def test_a_misspelt_switch_is_an_error():
    with pytest.raises(LowbitError, match=r"LOWBIT_AMD_FIX=maybe.*use 0"):
        apply_amd_fix(AMD, {"LOWBIT_AMD_FIX": "maybe"})


@pytest.mark.parametrize("processor", [AMD, INTEL])
def test_a_users_setting_is_left_alone(processor):
    environ = {"MKL_DEBUG_CPU_TYPE": "4"}
    fix = apply_amd_fix(processor, environ)
    assert fix.status is FixStatus.ALREADY_SET and "MKL_DEBUG_CPU_TYPE=4" in fix.message
    assert environ == {"MKL_DEBUG_CPU_TYPE": "4"}


@pytest.mark.parametrize("features", ["avx fma", "avx2", None])
def test_not_forced_on_an_amd_without_the_instructions(features):
    environ: dict[str, str] = {}
    assert apply_amd_fix(cpu("AuthenticAMD", features), environ).status is FixStatus.IMPOSSIBLE
    assert environ == {}


def test_twice_is_as_good_as_once():
    environ: dict[str, str] = {}
    apply_amd_fix(AMD, environ)
    again = apply_amd_fix(AMD, environ)
    assert again.status is FixStatus.ALREADY_SET and again.message.startswith("AMD fix in place")
    assert environ == {"MKL_DEBUG_CPU_TYPE": "5"}


def test_deciding_changes_nothing():
    environ: dict[str, str] = {}
    assert decide_amd_fix(AMD, environ).status is FixStatus.APPLIED
    assert environ == {}


def test_child_processes_inherit_it(monkeypatch):
    # setenv and not delenv: so that monkeypatch also removes what apply_amd_fix writes.
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "")
    monkeypatch.delenv("LOWBIT_AMD_FIX", raising=False)
    apply_amd_fix(AMD)
    child = [sys.executable, "-c", "import os; print(os.environ['MKL_DEBUG_CPU_TYPE'])"]
    assert subprocess.run(child, capture_output=True, text=True, check=True).stdout.strip() == "5"
    assert os.environ["MKL_DEBUG_CPU_TYPE"] == "5"


@pytest.mark.parametrize("name", PROCESSORS)
def test_another_processor(name, monkeypatch):
    monkeypatch.setenv("LOWBIT_CPU", name)
    monkeypatch.setattr("lowbit.machine.cpu.hardware_info", lambda: INTEL)
    environ: dict[str, str] = {}
    amd = name.startswith("amd-")
    assert apply_amd_fix(environ=environ).status is (FixStatus.APPLIED if amd else FixStatus.NOT_NEEDED)
    assert environ == ({"MKL_DEBUG_CPU_TYPE": "5"} if amd else {})


def test_another_processor_on_a_machine_that_cannot_run_it(monkeypatch):
    monkeypatch.setenv("LOWBIT_CPU", "amd-avx2")
    monkeypatch.setattr("lowbit.machine.cpu.hardware_info", lambda: cpu("GenuineIntel", "avx"))
    environ: dict[str, str] = {}
    with pytest.raises(LowbitError, match="asks for avx2 and fma"):
        apply_amd_fix(environ=environ)
    assert environ == {}


# How many pages are new when three pieces of this many MB come, go and come again.
PROGRAM = """
import ctypes, resource, sys
from lowbit.accel.process_settings import keep_freed_memory, return_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] != "no":
    assert keep_freed_memory()
if sys.argv[1] == "undone":
    return_freed_memory()
def use(size):
    pieces = [libc.malloc(size) for _ in range(3)]
    for piece in pieces:
        ctypes.memset(piece, 1, size)
    for piece in pieces:
        libc.free(piece)
use(int(sys.argv[2]) << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use(int(sys.argv[2]) << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
@pytest.mark.parametrize("size", [24, 60])
def test_what_is_freed_is_used_again(size):
    pages = {}
    for wanted in ("no", "yes", "undone"):
        command = [sys.executable, "-c", PROGRAM, wanted, str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd())
        pages[wanted] = int(done.stdout)
    assert pages["yes"] < 500 < pages["no"]
    if size > 32:  # smaller pieces are glibc's own choice
        assert pages["undone"] > 500


def test_the_last_holder_undoes_it(monkeypatch):
    calls = []

    class Library:
        def mallopt(self, setting, value):
            calls.append((setting, value))
            return 1

        def malloc_trim(self, pad):
            calls.append("trimmed")

    monkeypatch.setattr(process_settings, "_holders", 0)
    monkeypatch.setattr(process_settings, "_glibc", Library)
    assert keep_freed_memory() and keep_freed_memory()
    return_freed_memory()
    assert "trimmed" not in calls
    return_freed_memory()
    assert calls[-1] == "trimmed" and (-4, 65536) in calls


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(process_settings.ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()


def test_the_garbage_collector_looks_at_everything_again_afterwards():
    class Node:
        pass

    def cycle() -> weakref.ref:
        node = Node()
        node.itself = node
        return weakref.ref(node)

    assert gc.get_freeze_count() == 0
    with without_collecting_what_is_there():
        assert gc.get_freeze_count() > 0
        made_inside = cycle()
        gc.collect()
        assert made_inside() is None
        kept = Node()
        kept.itself = kept
        with without_collecting_what_is_there():
            held = weakref.ref(kept)
        del kept
        gc.collect()
        assert held() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert held() is None
