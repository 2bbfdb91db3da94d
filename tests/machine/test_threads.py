from __future__ import annotations

import pytest
from paddle.base import core
from threadpoolctl import threadpool_info

from lowbit.machine.threads import math_threads, math_threads_kept


def threads_now() -> int:
    return next(pool["num_threads"] for pool in threadpool_info() if "iomp" in pool["prefix"])


@pytest.fixture
def two_threads(monkeypatch):
    before = math_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    core.set_num_threads(2)
    yield
    core.set_num_threads(before)


def test_restored_after_a_change(two_threads):
    with math_threads_kept():
        core.set_num_threads(1)
        assert threads_now() == 1
    assert threads_now() == 2 == math_threads()


def test_restored_after_an_error(two_threads):
    with pytest.raises(ZeroDivisionError), math_threads_kept():
        core.set_num_threads(1)
        raise ZeroDivisionError
    assert threads_now() == 2
