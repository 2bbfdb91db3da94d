"""Histograms out of a run's checkpoint."""

from __future__ import annotations

from lowbit.config import validate
from lowbit.report.weights import weight_histograms
from lowbit.training.loop import train
from tests.training.conftest import tiny_values


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
