from __future__ import annotations

import math
import os
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowbit.deploy.infer import Prediction
from lowbit.tipc.step_outputs import (
    PrintedClass,
    changed_files,
    check_checkpoint,
    check_weights,
    class_count,
    epoch_losses,
    find_weights,
    last_accuracy,
    last_loss,
    printed_classes,
    take_snapshot,
)
from lowbit.training.display import StepReport, accuracy_line


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


@pytest.fixture
def log(tmp_path):
    def write(text: str):
        (tmp_path / "x.log").write_text(text, "utf-8")
        return tmp_path / "x.log"

    return write


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("loss: 1.5\nloss: 2.24239, avg_ips: 1", 2.24239),
        ("CELoss: 9.0, loss: 2.5e-3", 2.5e-3),
        ("Loss=0.7", 0.7),
        ("loss_scale: 128", None),
        ("gloss: 1", None),
        ("loss: none", None),
        ("", None),
    ],
)
def test_losses(log, text, loss):
    assert last_loss(log(text)) == loss


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-inf"])
def test_losses_that_are_no_numbers(log, word):
    assert not math.isfinite(last_loss(log(f"loss: 1.0\nloss: {word}, x")))


@given(loss=st.floats(0, 1e6), top1=st.floats(0, 1))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_lines_that_lowbit_prints(log, loss, top1):
    report = StepReport(0, 10, {"top1": top1, "loss": loss}, 0.1, 0.1, 0.1, 4.0)
    assert last_loss(log(report.log_line())) == pytest.approx(loss, abs=1e-5)
    assert last_accuracy(log(accuracy_line({"top1": top1}))) == pytest.approx(top1, abs=1e-3)
    prediction = Prediction("./a, b/c.jpg", (8,), (top1,), ("x",))
    [found] = printed_classes(log(prediction.line()))
    assert (found.image, found.class_id) == ("./a, b/c.jpg", 8)
    assert found.probability == pytest.approx(top1, abs=1e-3)


def test_the_last_accuracy_of_the_model_itself(log):
    assert last_accuracy(log(" * Acc@1 0.1\n * Acc@1 0.564 Acc@5 0.790\n * fp32 Acc@1 0.9")) == 0.564
    assert last_accuracy(log("Acc@1 0.3")) is None


def test_classes_printed_by_other_scripts(log):
    text = "ONNXRuntime predict: \nclass_id: 8, prob: 9.09e-1\n"
    text += "demo.jpg:\tclass id(s): [8, 7], score(s): [0.91, 0.05]"
    assert printed_classes(log(text)) == [PrintedClass(None, 8, 0.909), PrintedClass("demo.jpg", 8, 0.91)]


@given(st.binary(max_size=200))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(tmp_path, content):
    file = tmp_path / "any.log"
    file.write_bytes(content)
    last_loss(file), last_accuracy(file), printed_classes(file)


def test_losses_of_epochs(tmp_path):
    log = tmp_path / "x.log"
    log.write_text(
        "[Epoch 0, iter: 10] top1: 0.5, loss: 2.0, avg_ips: 1\n[Epoch 0, iter: 20] top1: 0.5, loss: 1.0\n"
        "[Epoch 1, iter: 10] top1: 0.5, loss: 0.5\nloss: 9.0 of no epoch\n",
        "utf-8",
    )
    assert epoch_losses(log) == [1.5, 0.5]
    log.write_text(
        "ppcls INFO: [Train][Epoch 1/2][Iter: 0/4]lr: 0.1, CELoss: 7.0, loss: 6.0, ips: 1\n"
        "ppcls INFO: [Eval][Epoch 1][Iter: 0/1]CELoss: 1.0, loss: 1.0, top1: 0.25\n"
        "ppcls INFO: [Train][Epoch 2/2][Iter: 0/4]lr: 0.1, CELoss: 4.0, loss: 3.0, ips: 1\n"
        "ppcls INFO: [Eval][Epoch 2][Avg]CELoss: 1.0, loss: 1.0, top1: 0.75000, top5: 1.0\n",
        "utf-8",
    )
    assert epoch_losses(log) == [6.0, 3.0]
    assert last_loss(log) == 3.0
    assert last_accuracy(log) == 0.75


def test_the_number_of_classes(tmp_path):
    (tmp_path / "lite/train/a").mkdir(parents=True)
    (tmp_path / "lite/train/b").mkdir()
    (tmp_path / "net.yaml").write_text("Arch: {name: Net, class_num: 7}", "utf-8")
    (tmp_path / "other.yaml").write_text("Arch: [1", "utf-8")
    assert class_count(tmp_path, ["train.py", "--data-path=./lite"]) == 2
    assert class_count(tmp_path, ["train.py", "-c", "net.yaml"]) == 7
    assert class_count(tmp_path, ["train.py", "-c", "net.yaml", "-o", "Arch.class_num=3"]) == 3
    assert class_count(tmp_path, ["train.py", "-c", "other.yaml", "--data-path=./nowhere"]) is None
    assert class_count(tmp_path, ["train.py", "-c", "nowhere.yaml"]) is None
