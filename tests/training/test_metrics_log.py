from __future__ import annotations

import json
import sys

import pytest

from lowbit.errors import LowbitError
from lowbit.training.metrics import MetricsLog
from tests.tiny_net import build_tiny


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


def read_curves(folder):
    """VisualDL's own reader on the one file of a log, and its tags, which it calls by file, with % for /."""
    (file,) = (folder / "vdl").iterdir()
    reader = pytest.importorskip("visualdl").LogReader(file_path=str(file))
    tags = {name.rsplit("/", 1)[1].replace("%", "/"): kind for name, kind in reader.tags().items()}
    del tags["meta_data_tag"]
    return reader, tags


def test_visualdl_gets_the_scalars_also_those_of_layers(tmp_path):
    log = MetricsLog(tmp_path, resumed_step=None, visualdl=True)
    log.write("train", 1, loss=0.5, epoch=0)
    health = {"layer1.conv": {"forward.weight": {"sqnr": 20.0, "clipped": 0.1}}}
    log.write("health", 1, epoch=0, layers=health)
    log.close()
    curves, found = read_curves(tmp_path)
    weight = "health/layers/layer1.conv/forward.weight"
    tags = ["train/loss", f"{weight}/sqnr", f"{weight}/clipped"]
    assert found == dict.fromkeys(tags, "scalar")
    assert [(one.id, one.value) for one in curves.get_data("scalar", tags[1])] == [(1, 20.0)]


def test_visualdl_gets_the_weights(tmp_path):
    log = MetricsLog(tmp_path, resumed_step=None, visualdl=True)
    model = build_tiny()
    log.draw_weights(1, model)
    model.conv.weight.set_value(model.conv.weight * float("nan"))
    log.draw_weights(2, model)
    log.close()
    curves, found = read_curves(tmp_path)
    assert found == {"weights/conv": "histogram", "weights/head": "histogram"}
    assert len(curves.get_data("histogram", "weights/conv")) == 1  # NaN has no histogram
    first, _ = curves.get_data("histogram", "weights/head")
    assert sum(first.histogram.hist) == 8 * 16 * 4


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
