"""What a recipe changes in the course of a run."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.nn.deployed_form import dynamic_inputs
from lowbit.training import loop
from lowbit.training.checkpoint import read_checkpoint
from lowbit.training.freeze_dynamic_scales import deployable
from lowbit.training.loop import train
from lowbit.training.trained_model import open_checkpoint
from tests.support.runs import records, tiny_values

W4A4 = {
    "rules": [
        {
            "forward": {
                "input": {"grid": "int4", "sign": "auto", "scaling": "learned"},
                "weight": {"grid": "int4", "granularity": "N", "scaling": "learned"},
            }
        }
    ],
    "calibration": {"steps": 2},
}


FIXED = {
    "rules": [
        {
            "forward": {
                "input": {"grid": "int4", "sign": "auto", "granularity": "N"},
                "weight": {"grid": "int4", "granularity": "N"},
            },
            "grad_input": {
                "grad_output": {"grid": "int8", "granularity": "N", "rounding": "stochastic"},
                "weight": {"grid": "int4", "granularity": "C"},
            },
            "grad_weight": {
                "grad_output": {"grid": "int8", "granularity": "C", "rounding": "stochastic"},
                "input": {"grid": "int4", "sign": "auto"},
            },
        }
    ],
    "fix_scales": 1,
}


def _run(folder, recipe, **more):
    values = tiny_values(folder)
    values["Recipe"] = recipe
    values["Global"] |= more
    return train(validate(values, {}, "test"), silent=True)


def _weights(folder):
    return read_checkpoint(folder / "checkpoints" / "latest.lowbit").model


@pytest.mark.parametrize("more", [{}, {"ema": 0.9}])
def test_batch_norm_is_reestimated_at_the_end(tmp_path, more):
    plain = _weights(_run(tmp_path / "plain", W4A4, **more))
    folder = _run(tmp_path / "again", W4A4 | {"reestimate_bn": 3}, **more)
    found = _weights(folder)
    changed = {name for name in plain if not np.array_equal(plain[name], found[name])}
    assert changed and all(name.endswith(("._mean", "._variance")) for name in changed)
    (before,) = records(folder, "before_reestimate_bn")
    assert {"top1", "loss", "epoch"} <= before.keys()
    after = records(folder, "eval")[-1]
    assert before["step"] == after["step"] and before["loss"] != after["loss"]
    last = records(tmp_path / "plain", "eval")[-1]
    assert before["loss"] == last["loss"]


def test_oscillation_is_recorded_for_each_layer(tmp_path):
    folder = _run(tmp_path, W4A4 | {"oscillation": {"freeze": 0.02, "damp": 0.01}})
    for record in records(folder, "health"):
        for layer in record["layers"].values():
            assert {"oscillating", "frozen"} <= layer["forward.weight"].keys()
    state = _weights(folder)
    frozen = {n: v for n, v in state.items() if n.endswith("weight_quantizer.oscillation.frozen")}
    assert len(frozen) == 2


STAGES = {"progressive": [{"bits": 8, "epochs": 1}, {"bits": 5, "epochs": 1}]}


def test_bits_fall_by_epochs(tmp_path, capsys):
    folder = _run(tmp_path, W4A4 | STAGES, epochs=4)
    bits = [v.item() for name, v in _weights(folder).items() if name.endswith("_quantizer.bits")]
    assert bits == [4] * 4
    progress = read_checkpoint(folder / "checkpoints" / "latest.lowbit").progress
    assert progress.best_epoch in (2, 3)  # of the epochs with the bits of the rules
    assert len(records(folder, "eval")) == 4


def test_a_checkpoint_of_an_earlier_stage_has_its_bits(tmp_path):
    folder = _run(tmp_path, W4A4 | STAGES, epochs=1)
    model = open_checkpoint(folder).model
    assert str(model.conv.weight_quantizer.grid()) == "int8"


def test_what_is_trained_last_is_what_is_deployed(tmp_path):
    folder = _run(tmp_path, FIXED)
    trained = open_checkpoint(folder)
    assert not dynamic_inputs(trained.model)
    told = []
    assert deployable(trained, tell=told.append) is trained and not told
    before = open_checkpoint(_run(tmp_path / "dynamic", FIXED | {"fix_scales": 0})).model
    assert len(dynamic_inputs(before)) == 2


def test_too_short_a_run_says_that_scales_stay_dynamic(tmp_path, capsys):
    values = tiny_values(tmp_path) | {"Recipe": FIXED}
    values["Global"]["epochs"] = 1
    train(validate(values, {}, "test"))
    assert "fix_scales: 1 has no effect in a run of 1 epochs" in capsys.readouterr().out
    assert len(dynamic_inputs(open_checkpoint(tmp_path).model)) == 2


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (W4A4 | {"fix_scales": 1}, "no input has scaling dynamic"),
        (FIXED | {"progressive": [{"bits": 8, "epochs": 1}]}, "for QAT"),
        (W4A4 | {"progressive": [{"bits": 4, "epochs": 1}, {"bits": 8, "epochs": 1}]}, "must fall"),
    ],
)
def test_what_has_no_effect_is_an_error(tmp_path, recipe, message):
    with pytest.raises(LowbitError, match=message):
        _run(tmp_path, recipe)


@pytest.mark.parametrize(
    "more", [{}, {"oscillation": {"freeze": 0.02, "damp": 0.01}, "reestimate_bn": 2}, STAGES, FIXED]
)
def test_a_killed_run_ends_with_the_same_bits(tmp_path, more):
    whole = _weights(_run(tmp_path / "whole", W4A4 | more))
    with pytest.raises(KeyboardInterrupt):
        _run_and_stop(tmp_path / "cut", W4A4 | more, 15 if more is FIXED else 4)
    _run(tmp_path / "cut", W4A4 | more, checkpoints="auto")
    found = _weights(tmp_path / "cut")
    assert whole.keys() == found.keys()
    for name, value in whole.items():
        assert value.tobytes() == found[name].tobytes(), name


def _run_and_stop(folder, recipe, at):
    with pytest.MonkeyPatch.context() as patch:
        step = loop.TrainingStep.__call__

        def stopping(self, batch, rate):
            result = step(self, batch, rate)
            if self._session.progress.step == at:
                os.kill(os.getpid(), signal.SIGTERM)
            return result

        patch.setattr(loop.TrainingStep, "__call__", stopping)
        _run(folder, recipe)
