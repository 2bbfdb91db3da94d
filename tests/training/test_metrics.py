"""What a quantized run writes about its layers after each epoch."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.nn.inspect import kept_scales, layers_by_name, weight_health
from lowbit.training.loop import train
from lowbit.training.metrics import Meter, MetricsLog
from lowbit.training.trained_model import open_checkpoint
from tests.support.runs import tiny_values
from tests.support.tiny_net import build_tiny


def test_a_meter_weighs_batches_by_their_samples():
    meter = Meter(topk=(1, 5))
    meter.add(loss=1.0, hits=np.array([2.0, 3.0]), samples=4)
    meter.add(loss=4.0, hits=np.array([0.0, 1.0]), samples=2)
    assert meter.result() == pytest.approx({"loss": 2.0, "top1": 2 / 6, "top5": 4 / 6})
    assert meter.samples == 6


def test_a_meter_goes_on_from_its_sums():
    meter = Meter(topk=(1,))
    meter.add(loss=0.1, hits=np.array([1.0]), samples=3)
    again = Meter(topk=(1,), sums=np.array(meter.sums.tolist()))
    for each in (meter, again):
        each.add(loss=0.7, hits=np.array([0.0]), samples=3)
    assert again.result() == meter.result()


def test_without_samples_there_is_no_figure():
    assert all(np.isnan(value) for value in Meter().result().values())


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


LSQ = {
    "rules": [
        {
            "forward": {
                "input": {"grid": "int8", "scaling": "learned"},
                "weight": {"grid": "int4", "granularity": "N", "scaling": "learned"},
            }
        }
    ],
    "calibration": {"steps": 1},
}


def _train(folder, recipe, **settings):
    return train(validate(tiny_values(folder, **settings) | {"Recipe": recipe}, {}, "tiny"))


def _health(folder):
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "health"]


def test_of_qat_the_weights_and_scales_are_written(tmp_path):
    folder = _train(tmp_path / "run", LSQ, use_visualdl=True)
    first, last = _health(folder)
    assert (first["epoch"], last["epoch"]) == (0, 1)
    latest = layers_by_name(open_checkpoint(folder / "checkpoints" / "latest.lowbit").model)
    assert set(last["layers"]) == set(latest) == {"conv", "head"}
    for name, operands in last["layers"].items():
        assert operands["forward.weight"]["sqnr"] == pytest.approx(weight_health(latest[name]).sqnr, abs=1e-4)
        for operand, scale in kept_scales(latest[name]).items():
            assert operands[operand]["scale"] == pytest.approx(scale, rel=1e-4)
    tags = read_curves(folder)[1]
    assert tags["weights/conv"] == "histogram"
    assert tags["health/layers/conv/forward.weight/sqnr"] == tags["train/loss"] == "scalar"


def test_it_can_be_switched_off_and_fp32_has_none(tmp_path):
    assert not _health(_train(tmp_path / "off", LSQ, health_interval=0, epochs=1))
    assert not _health(_train(tmp_path / "fp32", None, epochs=1))
