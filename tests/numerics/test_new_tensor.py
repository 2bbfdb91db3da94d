from __future__ import annotations

import paddle
import pytest

from lowbit.numerics import new_tensor as module
from lowbit.numerics.new_tensor import new_tensor


def test_shape_type_and_all_of_its_memory_in_large_pages(monkeypatch: pytest.MonkeyPatch):
    advised = []
    monkeypatch.setattr(module, "advise_large_pages", lambda *call: advised.append(call))
    tensor = new_tensor([3, 5], "int32")
    assert tensor.shape == [3, 5] and tensor.dtype == paddle.int32
    assert advised == [(tensor.data_ptr(), 60)]
