from __future__ import annotations

import json
import sys

import pytest

from lowbit.errors import LowbitError
from lowbit.training.metrics_log import MetricsLog


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write(folder, *when, resumed=None, visualdl=False):
    log = MetricsLog(folder, resumed_step=resumed, visualdl=visualdl)
    for step in when:
        log.write("train", step, loss=0.5, epoch=0)
    log.close()


def test_a_new_run_starts_a_new_file(tmp_path):
    write(tmp_path, 1, 2)
    write(tmp_path, 5)
    assert steps(tmp_path) == [5]


def test_a_resumed_run_drops_what_came_after_the_checkpoint(tmp_path):
    write(tmp_path, 10, 20, 30)
    write(tmp_path, 30, 40, resumed=20)
    assert steps(tmp_path) == [10, 20, 30, 40]


def test_a_line_cut_by_a_crash_is_dropped(tmp_path):
    write(tmp_path, 10)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    write(tmp_path, 20, resumed=10)
    assert steps(tmp_path) == [10, 20]


def test_visualdl_gets_the_scalars(tmp_path):
    pytest.importorskip("visualdl")
    write(tmp_path, 1, 2, visualdl=True)
    (file,) = (tmp_path / "vdl").iterdir()
    assert b"train/loss" in file.read_bytes()


def test_without_visualdl_the_curves_are_left_out_unless_insisted_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "visualdl", None)
    write(tmp_path, 1, visualdl=None)
    assert steps(tmp_path) == [1] and not (tmp_path / "vdl").exists()
    with pytest.raises(LowbitError, match=r"VisualDL is not installed: pip install"):
        write(tmp_path, 1, visualdl=True)


def test_what_is_not_a_number_becomes_null(tmp_path):
    log = MetricsLog(tmp_path, resumed_step=None, visualdl=False)
    log.write("train", 1, loss=float("nan"), top1=float("inf"))
    log.close()
    assert (
        tmp_path / "metrics.jsonl"
    ).read_text() == '{"kind": "train", "step": 1, "loss": null, "top1": null}\n'


def test_a_full_disk_is_named(tmp_path):
    log = MetricsLog(tmp_path, resumed_step=None, visualdl=False)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(LowbitError, match=r"cannot write .*metrics\.jsonl: No space left"):
        log.write("train", 1, loss=0.5)
