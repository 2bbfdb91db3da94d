"""What a quantized run writes about its layers after each epoch."""

from __future__ import annotations

import json

import pytest

from lowbit.config import validate
from lowbit.nn.inspect import kept_scales, layers_by_name, weight_health
from lowbit.training.loop import train
from lowbit.training.trained_model import open_checkpoint
from tests.training.conftest import tiny_values
from tests.training.test_metrics_log import read_curves

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
