from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lowbit.machine import allocator
from lowbit.machine.allocator import return_large_memory

# A hole: a large piece is freed below a small one that stays.
PROGRAM = """
import ctypes, sys
from lowbit.machine.allocator import return_large_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "yes":
    assert return_large_memory()
def piece(size):
    address = libc.malloc(size)
    ctypes.memset(address, 1, size)
    return address
libc.free(piece(30 << 20))  # glibc learns that such sizes come and go
large, small = piece(24 << 20), piece(1000)
libc.free(large)
print(open("/proc/self/status").read())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_what_is_freed_is_given_back():
    held = []
    for wanted in ("no", "yes"):
        command = [sys.executable, "-c", PROGRAM, wanted]
        out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd()).stdout
        held.append(int(re.search(r"RssAnon:\s+(\d+) kB", out).group(1)))
    assert held[0] - held[1] > 20 << 10


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not return_large_memory()
