from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from lowbit.accel import allocator
from lowbit.accel.allocator import keep_freed_memory, return_freed_memory

# How many pages are new when three pieces of this many MB come, go and come again.
PROGRAM = """
import ctypes, resource, sys
from lowbit.accel.allocator import keep_freed_memory, return_freed_memory
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

    monkeypatch.setattr(allocator, "_holders", 0)
    monkeypatch.setattr(allocator, "_glibc", Library)
    assert keep_freed_memory() and keep_freed_memory()
    return_freed_memory()
    assert "trimmed" not in calls
    return_freed_memory()
    assert calls[-1] == "trimmed" and (-4, 65536) in calls


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
