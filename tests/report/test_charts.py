"""The numbers behind the charts."""

from __future__ import annotations

import math

import pytest

from lowbit.config import validate
from lowbit.report import Verdict, open_runs
from lowbit.report.charts import (
    MOST_POINTS,
    curves,
    layer_series,
    shorten,
    tradeoffs,
    weight_histograms,
)
from lowbit.training.loop import train
from tests.support.fake_run import OPERANDS, write_run
from tests.support.runs import tiny_values


def test_curves_overlay_the_runs(tmp_path):
    runs = open_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b", epochs=2, seed=1)])
    found = {one["id"]: one for one in curves(runs)}
    assert list(found) == ["loss", "top1", "lr", "speed"]
    assert [one["label"] for one in found["loss"]["series"]] == [
        *("a training", "a validation", "b training", "b validation")
    ]
    lr = found["lr"]["series"][0]
    assert lr["x"] == [1, 2, 3, 4]
    assert lr["y"] == [pytest.approx(0.1 / n, rel=1e-3) for n in lr["x"]]


def test_of_many_epochs_some_are_shown_and_the_last(tmp_path):
    (run,) = open_runs([write_run(tmp_path / "run", layers=1, epochs=2 * MOST_POINTS + 2)])
    x = curves([run])[0]["series"][0]["x"]
    assert x[:3] == [1, 4, 7] and x[-1] == 2 * MOST_POINTS + 2
    found = layer_series(run)
    assert found["epochs"] == x
    assert len(found["layers"]["layers.0.conv"]["forward.input"]["sqnr"]) == len(x)


def test_layers_keep_what_is_drawn(tmp_path):
    (run,) = open_runs([write_run(tmp_path / "run", layers=2, epochs=3)])
    del run.of_kind("health")[1]["layers"]["layers.1.conv"]["forward.input"]["sqnr"]
    layers = layer_series(run)["layers"]
    assert set(layers["layers.0.conv"]) == set(OPERANDS)
    assert set(layers["layers.0.conv"]["grad_input.grad_output"]) == {
        "sqnr",
        "clipped",
        "underflowed",
        "gain",
    }
    gap = layers["layers.1.conv"]["forward.input"]["sqnr"]
    assert gap[1] is None and None not in (gap[0], gap[2])


@pytest.mark.parametrize(("value", "short"), [(0.123456, 0.1235), (3.0, 3), (math.inf, None), (None, None)])
def test_numbers_are_shortened(value, short):
    assert shorten(value) == short


def _with_accuracy(run, values):
    run.metrics[:] = [{"kind": "eval", "epoch": epoch, "top1": value} for epoch, value in enumerate(values)]


def test_the_axis_shows_late_differences(tmp_path):
    one, other = open_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b")])
    _with_accuracy(one, [0.1, 0.5, 0.9, 0.97, 0.98, 0.981])
    _with_accuracy(other, [0.994])  # its only epoch is its last, too
    (chart,) = curves([one, other])
    low, high = chart["zoom"]
    assert 97.5 < low < 98 and 99.4 < high < 100  # percent
    _with_accuracy(one, [0.1, 0.99, 0.2, 0.99, 0.1])
    assert curves([one])[0]["zoom"] is None  # it is the whole range


def test_throughput_is_left_out_where_the_machine_was_busy(tmp_path):
    one, other = open_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b")])
    for record in one.of_kind("train"):
        record["other_processes"] = 0.9
    found = {chart["id"]: chart for chart in curves([one, other])}
    assert [series["label"] for series in found["speed"]["series"]] == ["b"]
    assert "speed" not in {chart["id"] for chart in curves([one])}


def test_points_of_accuracy_over_size_and_latency():
    latency = {"ratio": 2.0}
    deployed = Verdict(
        **{"run": "a", "precision": "W4A4", "top1": 0.98, "fp32_top1": 0.99, "size": 1000, "fp32_size": 7000},
        latency=latency,
    )
    plain = Verdict(run="b", precision="fp32", top1=0.99, size=7000)
    found = tradeoffs([Verdict(run="c", precision="fp32"), deployed, plain])
    assert [(one.label, one.x, one.run) for one in found["size"]] == [("a", 1.0, 1), ("b", 7.0, 2)]
    assert found["size"][0].start == (7.0, 99.0) and found["size"][1].start is None
    assert [(one.x, one.y, one.start) for one in found["latency"]] == [(50.0, 98.0, (100.0, 99.0))]


def test_quantized_layers_are_in_steps_and_the_others_in_values(tmp_path):
    rule = {"match": {"name": "conv"}, "forward": {"weight": {"grid": "int4", "granularity": "N"}}}
    values = tiny_values(tmp_path / "run", epochs=1) | {"Recipe": {"rules": [rule]}}
    found, why = weight_histograms(train(validate(values, {}, "tiny")))
    assert why == ""
    assert (found["conv"]["lowest"], found["conv"]["highest"]) == (-8, 7)
    assert sum(found["conv"]["counts"]) == 8 * 3 * 9
    assert "lowest" not in found["head"]


def test_a_checkpoint_that_cannot_be_opened_is_a_line(tmp_path):
    (tmp_path / "latest.lowbit").write_bytes(b"nothing")
    found, why = weight_histograms(tmp_path)
    assert found == {} and "not a readable lowbit checkpoint" in why
