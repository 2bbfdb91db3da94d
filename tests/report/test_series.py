"""The numbers behind the charts."""

from __future__ import annotations

import math

import pytest

from lowbit.report import open_runs
from lowbit.report.series import MOST_POINTS, curves, layer_series, shorten
from tests.report.fake_run import OPERANDS, write_run


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
