from __future__ import annotations

import os
import pickle
from collections import Counter

import numpy as np
import pytest

from lowbit.tipc.left_files import changed_files, check_checkpoint, check_weights, find_weights, take_snapshot


def _save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value))
    return path


def test_which_files_are_new(tmp_path):
    for name in ("kept", "changed", "moved", "replaced"):
        (tmp_path / name).write_text(name, "utf-8")
    before = take_snapshot(tmp_path)
    (tmp_path / "changed").write_text("longer than before", "utf-8")
    (tmp_path / "below").mkdir()
    (tmp_path / "moved").rename(tmp_path / "below/moved")
    (tmp_path / "other").write_text("replaced", "utf-8")
    os.utime(tmp_path / "other", ns=(before[tmp_path / "replaced"][0],) * 2)
    os.replace(tmp_path / "other", tmp_path / "replaced")  # the same size and time, another file
    (tmp_path / "dangling").symlink_to("nowhere")
    names = ["below/moved", "changed", "replaced"]
    assert changed_files(before, tmp_path) == [tmp_path / name for name in names]
    assert take_snapshot(tmp_path / "nothing") == {}


@pytest.mark.parametrize("written", ["latest", "latest.pdparams", "latest/model_state.pdparams"])
def test_the_names_of_weights(tmp_path, written):
    assert find_weights(tmp_path / "latest") is None
    path = _save(tmp_path / written, {})
    assert find_weights(tmp_path / "latest") == path


def test_a_checkpoint_must_be_new(tmp_path):
    leaves = tmp_path / "run/latest.pdparams"
    check, found = check_checkpoint(leaves, {}, tmp_path / "run")
    assert (check.passed, found) == (False, None)
    assert check.detail.startswith("no latest.pdparams in ")
    _save(leaves, {"w": np.zeros(4, np.float32)})
    assert check_checkpoint(leaves, {}, tmp_path / "run")[1] == leaves
    check, found = check_checkpoint(leaves, take_snapshot(tmp_path / "run"), tmp_path / "run")
    assert (check.passed, found) == (False, None)
    assert "is of an earlier run" in check.detail


def test_weights_are_read_and_finite(tmp_path):
    good = np.ones((2, 3), np.float32)
    nested = {"epoch": 3, "model": {"w": good, "n": np.arange(3)}, "list": [good]}
    assert check_weights(_save(tmp_path / "a.pdparams", nested)).detail == "3 arrays, all finite"
    bad = good.copy()
    bad[1, 1] = np.inf
    check = check_weights(_save(tmp_path / "b.pdparams", {"m": {"w": bad}}))
    assert (check.passed, check.detail) == (False, "NaN or Inf in m.w of b.pdparams")
    bf16 = np.array([0x3F80, 0x7F80], np.uint16)  # 1 and Inf
    assert check_weights(_save(tmp_path / "c.pdparams", {"w": bf16})).passed is False
    assert check_weights(_save(tmp_path / "c.pdparams", {"w": bf16[:1]})).passed is True


def test_weights_that_are_none(tmp_path):
    assert check_weights(_save(tmp_path / "a.pdparams", {})).passed is False
    assert check_weights(_save(tmp_path / "a.pdparams", 3)).passed is False
    whole = _save(tmp_path / "a.pdparams", {"w": np.zeros(100)})
    whole.write_bytes(whole.read_bytes()[:-50])
    check = check_weights(whole)
    assert check.passed is False and "truncated" in check.detail


def test_what_cannot_be_read_safely_is_not_judged(tmp_path):
    check = check_weights(_save(tmp_path / "a.pdparams", {"w": np.zeros(4), "c": Counter("ab")}))
    assert check.passed is None and "collections.Counter" in check.detail
    assert check_weights(_save(tmp_path / "a.safetensors", {})).passed is None
