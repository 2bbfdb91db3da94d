from __future__ import annotations

import ctypes
import sys

import pytest

from lowbit.kernels import large_pages
from lowbit.kernels.large_pages import WORTH_IT, advise_large_pages


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    calls: list[tuple[int, int, int]] = []
    monkeypatch.setattr(large_pages, "_madvise", lambda: lambda *call: calls.append(call))
    return calls


def test_little_is_not_worth_it(advised):
    advise_large_pages(4096, WORTH_IT - 1)
    assert not advised


@pytest.mark.parametrize(("offset", "rest"), [(0, 0), (64, 0), (0, 4), (4095, 1), (1, 4095)])
def test_the_advice_is_for_whole_pages_inside(advised, offset, rest):
    address, size = (1 << 32) + offset, (1 << 25) + rest
    advise_large_pages(address, size)
    ((start, length, what),) = advised
    assert start % 4096 == length % 4096 == 0 and what == 14
    assert address <= start < address + 4096
    assert address + size - 4096 < start + length <= address + size


@pytest.mark.skipif(sys.platform != "linux", reason="the advice is Linux's")
def test_memory_is_as_usable_afterwards():
    memory = (ctypes.c_char * (5 << 20))()
    memory[7] = b"x"
    advise_large_pages(ctypes.addressof(memory), len(memory))
    assert memory[7] == b"x" and memory[len(memory) - 1] == b"\0"
