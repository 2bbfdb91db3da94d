"""The average of weights: what is evaluated and saved, and that resuming gives the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest

from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.models import read_weights
from lowbit.training.checkpoint import read_checkpoint
from lowbit.training.evaluate import evaluate
from lowbit.training.inputs import build_loader, open_section
from lowbit.training.loop import train
from lowbit.training.trained_model import open_checkpoint
from lowbit.training.weight_average import WeightAverage
from tests.cli.conftest import W4A4G4
from tests.training.conftest import records, tiny_values


def test_the_average_follows_the_weights():
    net = paddle.nn.Linear(2, 1)
    average = WeightAverage(net, decay=0.9)
    before = net.weight.numpy()
    net.weight.set_value(np.ones([2, 1], np.float32))
    average.update(0)  # the decay is 0.1 at first
    np.testing.assert_allclose(average.arrays()["weight"], 0.1 * before + 0.9, rtol=1e-6)
    average.update(1000)
    np.testing.assert_allclose(average.arrays()["weight"], 0.9 * (0.1 * before + 0.9) + 0.1, rtol=1e-6)


def test_inside_the_model_has_the_averages_and_outside_its_own_weights():
    net = paddle.nn.Linear(2, 1)
    average = WeightAverage(net, decay=0.9)
    first = net.weight.numpy()
    net.weight.set_value(np.ones([2, 1], np.float32))
    with pytest.raises(RuntimeError), average.applied():
        np.testing.assert_array_equal(net.weight.numpy(), first)
        raise RuntimeError
    np.testing.assert_array_equal(net.weight.numpy(), 1)


def config(folder, *, amp=None, recipe=None, **settings):
    values = tiny_values(folder, **{"ema": 0.9} | settings)
    values |= {"AMP": amp} if amp else {}
    return validate(values | ({"Recipe": recipe} if recipe else {}), {}, "tiny")


@pytest.mark.parametrize(
    "extra", [{}, {"recipe": W4A4G4}, {"recipe": "qat_w4a4"}, {"amp": {"level": "O2", "dtype": "fp16"}}]
)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, extra):
    folder = train(config(tmp_path / "whole", **extra)) / "checkpoints"
    resumed = train(config(tmp_path / "again", checkpoints=str(folder / "model_0.lowbit"), **extra))
    whole = read_checkpoint(folder / "latest.lowbit")
    again = read_checkpoint(resumed / "checkpoints" / "latest.lowbit")
    assert whole.trained and whole.trained.keys() == again.trained.keys()
    for saved, other in ((whole.model, again.model), (whole.trained, again.trained)):
        for name, array in saved.items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)
    assert any((whole.model[name] != array).any() for name, array in whole.trained.items())


def test_what_was_evaluated_is_what_is_opened(tmp_path):
    folder = train(config(tmp_path / "run"))
    *_, last = records(folder, "eval")
    trained = open_checkpoint(folder / "checkpoints" / "latest.lowbit", trust=True)
    split = trained.config.DataLoader.Eval
    loader = build_loader(split, open_section(split.dataset, 10), training=False)
    assert evaluate(trained.model, loader)["loss"] == pytest.approx(last["loss"], rel=1e-6)
    companion = read_weights(folder / "checkpoints" / "latest.pdparams")
    for name, tensor in trained.model.state_dict().items():
        np.testing.assert_array_equal(companion[name], tensor.numpy(), err_msg=name)


def test_a_run_can_take_up_averaging(tmp_path, capsys):
    folder = train(config(tmp_path / "run", ema=None))
    resumed = train(config(tmp_path / "more", epochs=3, checkpoints=str(folder)))
    assert "Global.ema has changed" in capsys.readouterr().out
    assert read_checkpoint(resumed / "checkpoints" / "latest.lowbit").trained


def test_paddleclas_section_and_ours():
    values = tiny_values(Path("run"))
    assert validate(values | {"EMA": {"decay": 0.99}}, {}, "c").ema_decay == 0.99
    assert validate(values | {"EMA": {}}, {}, "c").ema_decay == 0.9999
    assert validate(values, {}, "c").ema_decay is None
    values["Global"]["ema"] = 0.9
    with pytest.raises(LowbitError, match="differ; give it once"):
        validate(values | {"EMA": {"decay": 0.99}}, {}, "c")
