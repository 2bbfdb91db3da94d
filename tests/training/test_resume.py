"""Runs in processes of their own that are killed, interrupted, or more than one."""

from __future__ import annotations

import json
import random
import re
import signal

import numpy
import numpy as np
import paddle
import pytest

from lowbit.training.checkpoint import read_checkpoint
from lowbit.training.resume import environment_differences, environment_record
from tests.support.runs import finish, start_run, tiny_values, weights_hash
from tests.support.two_ranks import LAUNCH_TWO


def test_killed_at_random_steps_a_run_ends_with_the_same_weights(tmp_path):
    """SIGKILL lets nothing be tidied up; what counts is what was on the disk."""
    settings = {"epochs": 3, "save_steps": 2, "print_batch_step": 1}
    finish(start_run(tmp_path / "calm", tiny_values(tmp_path / "calm", **settings)))

    values = tiny_values(tmp_path / "killed", checkpoints="auto", **settings)
    dice = random.Random()
    for life in range(3):
        process = start_run(tmp_path / "killed", values)
        lines_to_live = dice.randint(1, 11)
        for line in process.stdout:
            lines_to_live -= bool(re.match(r"\[Epoch \d+, iter: \d+\]", line))
            if not lines_to_live:
                break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, f"life {life} ended by itself"
    output = finish(start_run(tmp_path / "killed", values))
    calm, killed = (tmp_path / name / "checkpoints" / "latest.lowbit" for name in ("calm", "killed"))
    assert weights_hash(killed) == weights_hash(calm), output
    logs = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("calm", "killed")]
    # What depends on the machine's load is not compared.
    without_speed = [re.sub(r'"(images_per_second|other_processes)": [\d.e-]+', "", log) for log in logs]
    assert without_speed[0] == without_speed[1]


def test_an_interrupted_run_saves_and_says_how_to_go_on(tmp_path):
    process = start_run(tmp_path, tiny_values(tmp_path, epochs=50, print_batch_step=1))
    for line in process.stdout:
        if "iter: 3]" in line:
            process.send_signal(signal.SIGINT)
            break
    output = finish(process, code=130)
    assert "interrupted. The last good checkpoint is" in output and "--resume" in output
    progress = read_checkpoint(tmp_path / "checkpoints" / "latest.lowbit").progress
    assert progress.step >= 3 and progress.batch == progress.step % 12


def test_two_runs_cannot_share_a_folder(tmp_path):
    first = start_run(tmp_path, tiny_values(tmp_path, epochs=200, print_batch_step=1))
    assert any("iter: 1]" in line for line in first.stdout)
    second = finish(start_run(tmp_path, tiny_values(tmp_path)), code=2)
    assert re.search(r"another run \(process \d+\) is writing into .*another output folder", second)
    first.kill()
    first.communicate()


@pytest.mark.parametrize("drop_last", [True, False])
def test_two_processes_train_what_one_would_with_the_same_global_batch(tmp_path, drop_last):
    """1437 images in global batches of 100: without drop_last the shares of the last one differ in size."""
    states = {}
    for name, launcher, batch_size in (("one", (), 100), ("two", LAUNCH_TWO, 50)):
        values = tiny_values(tmp_path / name, epochs=1, sync_bn=name == "two")
        values["Arch"]["kwargs"] = {"dropout": 0.0}  # each process draws its own
        values["DataLoader"]["Train"]["sampler"] |= {"batch_size": batch_size, "drop_last": drop_last}
        values["DataLoader"]["Eval"]["sampler"]["batch_size"] = 7
        log_dir = ("--log_dir", str(tmp_path / "log")) if launcher else ()
        finish(start_run(tmp_path / name, values, launcher=(*launcher, *log_dir)))
        states[name] = read_checkpoint(tmp_path / name / "checkpoints" / "latest.lowbit")
    for key, expected in states["one"].model.items():
        np.testing.assert_allclose(states["two"].model[key], expected, rtol=2e-3, atol=2e-5, err_msg=key)
    # Each of the 360 validation images counts once, though 7 divides neither 360 nor 180.
    assert states["two"].progress.best * 360 == pytest.approx(round(states["two"].progress.best * 360))
    assert states["two"].progress.best == pytest.approx(states["one"].progress.best, abs=1.01 / 360)


def test_the_record_is_plain_and_repeats():
    record = environment_record()
    assert record == environment_record()
    assert json.loads(json.dumps(record)) == record
    assert paddle.__version__ in record["paddle"] and record["numpy"] == numpy.__version__
    assert environment_differences(record) == []


def test_what_changes_bits_changes_the_record(monkeypatch):
    monkeypatch.delenv("MKL_DEBUG_CPU_TYPE", raising=False)
    saved = environment_record()
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "5")
    differences = environment_differences(saved)
    assert "MKL_DEBUG_CPU_TYPE was unset, is 5" in differences
    assert f"OMP_NUM_THREADS was {saved['OMP_NUM_THREADS']}, is 7" in differences
    assert len(differences) == 2


def test_a_key_on_one_side_only_is_a_difference():
    assert environment_differences({}, {"cpu": "x"}) == ["cpu was not recorded, is x"]
    assert environment_differences({"cpu": "x"}, {}) == ["cpu was x, is not recorded"]


def test_records_of_earlier_versions_are_read():
    assert environment_differences({"neighbours": "lowbit"}, {"batch_norm": "lowbit"}) == []
    assert environment_differences({"neighbours": "lowbit"}, {"batch_norm": "Paddle"}) == [
        "batch_norm was lowbit, is Paddle"
    ]
