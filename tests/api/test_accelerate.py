"""The fast CPU path: what it changes, and that nothing of it stays."""

from __future__ import annotations

import gc
import logging
import os
import random
import subprocess
import sys
import threading

import numpy as np
import paddle
import pytest
from paddle import _C_ops, optimizer

import lowbit
from lowbit.accel import process_settings
from lowbit.accel.process_settings import SETTING
from lowbit.api import accelerate as accelerate_module
from lowbit.errors import LowbitError
from lowbit.kernels import why_missing
from lowbit.machine.device import math_threads
from tests.support.own_networks import LOW, build, step

NAMES = ("conv2d", "depthwise_conv2d", "batch_norm", "relu", "pool2d", "momentum_", "adam_", "adamw_")
OPTIMIZERS = (optimizer.Optimizer, optimizer.Adam, optimizer.AdamW)


def state() -> dict[str, object]:
    """Whatever accelerate changes."""
    operators = {name: getattr(_C_ops, name) for name in NAMES}
    return operators | {
        "steps": [owner.step for owner in OPTIMIZERS],
        "threads": math_threads(),
        "holders": process_settings._holders,
        SETTING: os.environ.get(SETTING),
    }


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    monkeypatch.delenv(SETTING, raising=False)
    before = state()
    yield
    assert state() == before


def test_as_a_with():
    with lowbit.accelerate() as done:
        if done.batch_norm == "lowbit":
            assert _C_ops.batch_norm.__wrapped__ is not None
        assert done.memory == (process_settings._holders > 0)


def test_as_a_call(images, labels):
    done = lowbit.accelerate()
    fast = step(build(), images, labels)
    done.close()
    done.close()
    assert fast == pytest.approx(step(build(), images, labels), rel=1e-4)


@pytest.mark.skipif(why_missing() is not None, reason="needs the compiled kernels")
def test_a_dropped_result_stays_in_effect():
    before, open_before = state(), set(accelerate_module._open)
    lowbit.accelerate()
    gc.collect()
    inside = state()
    for held in accelerate_module._open - open_before:
        held.close()
    assert inside["batch_norm"] is not before["batch_norm"] and inside["steps"] != before["steps"]
    assert accelerate_module._open == open_before


def test_after_an_error():
    with pytest.raises(ZeroDivisionError), lowbit.accelerate(threads=2):
        raise ZeroDivisionError


def test_nested_calls_are_closed_in_any_order():
    before = state()
    first, second = lowbit.accelerate(threads=2), lowbit.accelerate(threads=3)
    first.close()
    assert math_threads() == 3
    inside = state()
    assert why_missing() is not None or inside["batch_norm"] is not before["batch_norm"]
    second.close()


def test_threads_that_overlap():
    errors = []

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            for _ in range(10):
                held = [lowbit.accelerate() for _ in range(rng.randint(1, 3))]
                rng.shuffle(held)
                for one in held:
                    one.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_another_thread_may_not_close_it():
    errors: list[Exception] = []

    def close() -> None:
        try:
            held.close()
        except LowbitError as error:
            errors.append(error)

    with lowbit.accelerate() as held:
        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
    assert "close it there" in str(errors[0])


def test_training_in_a_thread_while_another_closes(images, labels):
    """What a thread computes does not depend on when another one takes the fast path away."""
    expected = step(build(), images, labels, steps=6)
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.extend(step(build(), images, labels, steps=6)))
    held = lowbit.accelerate()
    paddle.seed(0)
    thread.start()
    held.close()
    thread.join()
    assert found == pytest.approx(expected, rel=1e-3)


def test_low_precision_training_gives_the_same_with_it(images, labels):
    slow = step(lowbit.quantize(build(), LOW), images, labels, steps=1)
    with lowbit.accelerate():
        fast = step(lowbit.quantize(build(), LOW), images, labels, steps=1)
    assert fast == pytest.approx(slow, rel=1e-4)


def test_it_says_once_what_it_did(caplog):
    with caplog.at_level(logging.INFO, logger="lowbit"):
        with lowbit.accelerate(threads=5):
            pass
        with lowbit.accelerate(threads=5):
            pass
    assert len([one for one in caplog.records if "accelerate: convolutions" in one.message]) == 1


def test_the_setting_of_the_user_stays(monkeypatch):
    with monkeypatch.context() as changed:
        changed.setenv(SETTING, "4")
        with lowbit.accelerate(), lowbit.accelerate():
            assert os.environ[SETTING] == "4"
        assert os.environ[SETTING] == "4"


def test_the_result_in_all_its_forms():
    with lowbit.accelerate(threads=1) as done:
        assert done.to_dict()["threads"] == 1
        assert "convolutions" in str(done) and "<td>convolutions</td>" in done._repr_html_()


def test_impossible_threads():
    with pytest.raises(LowbitError, match="at least 1"):
        lowbit.accelerate(threads=0)
    with pytest.raises(LowbitError, match="whole number"):
        lowbit.accelerate(threads="two")


def test_it_changes_no_results_of_evaluation(images):
    net = build()
    net.eval()
    expected = net(paddle.to_tensor(images)).numpy()
    with lowbit.accelerate():
        np.testing.assert_allclose(net(paddle.to_tensor(images)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_dropped_in_another_thread_leaves_no_error_at_the_end():
    program = (
        "import threading, lowbit\n"
        "thread = threading.Thread(target=lambda: lowbit.accelerate() and None)\n"
        "thread.start(); thread.join()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and "Exception ignored" not in done.stderr, done.stderr
