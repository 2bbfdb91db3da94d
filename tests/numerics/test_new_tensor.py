from __future__ import annotations

import sys

import paddle
import pytest

from lowbit.numerics import new_tensor as module
from lowbit.numerics.new_tensor import new_tensor


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    calls: list[tuple[int, int, int]] = []
    monkeypatch.setattr(module, "_madvise", lambda: lambda *call: calls.append(call))
    return calls


def test_small_tensors_are_as_paddle_makes_them(advised):
    tensor = new_tensor([3, 5], "uint8")
    assert tensor.shape == [3, 5] and tensor.dtype == paddle.uint8 and not advised


def test_the_advice_is_for_whole_pages_inside_the_tensor(advised):
    tensor = new_tensor([3_000_001])
    ((start, size, what),) = advised
    assert start % 4096 == 0 and size % 4096 == 0 and what == 14
    assert tensor.data_ptr() <= start < tensor.data_ptr() + 4096
    end = tensor.data_ptr() + 4 * tensor.size
    assert end - 4096 < start + size <= end


@pytest.mark.skipif(sys.platform != "linux", reason="the advice is Linux's")
def test_the_system_takes_the_advice_or_leaves_it_and_the_memory_is_usable():
    assert module._madvise() is not None
    tensor = new_tensor([2_000_000])
    tensor.fill_(3.0)
    assert float(tensor.sum()) == 6_000_000
