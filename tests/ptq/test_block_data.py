"""Arrays in memory up to a limit, in files without names beyond it."""

from __future__ import annotations

import tempfile

import numpy as np
import paddle

from lowbit.ptq.block_data import BATCH, ActivationStore


def test_memory_is_bounded_and_files_leave_no_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = ActivationStore(memory=1000)
    first = store.new([200])
    second = store.new([200])
    assert not isinstance(first, np.memmap) and isinstance(second, np.memmap)
    second[:] = np.arange(200)
    assert second[199] == 199
    assert not list(tmp_path.iterdir())
    store.free(first)
    assert not isinstance(store.new([200]), np.memmap)


def test_a_function_of_all_images():
    x = np.random.default_rng(0).standard_normal([2 * BATCH + 3, 4]).astype(np.float32)
    for memory in (0, 1 << 20):
        made = ActivationStore(memory).mapped(lambda batch: batch * 2, x)
        np.testing.assert_array_equal(made, x * 2)


def test_integers_stay_integers():
    kept = ActivationStore(0).kept(np.arange(5))
    assert kept.dtype == np.int64 and kept.tolist() == [0, 1, 2, 3, 4]
    assert paddle.to_tensor(kept).dtype == paddle.int64
