"""What a run is made of: built from a config, described, saved and restored."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.training.session import open_session
from lowbit.training.step import TrainingStep
from tests.support.commands import W4A4G4
from tests.support.runs import tiny_config, tiny_values


def first_batch(session):
    return next(iter(session.train_loader.epoch(0)))


def test_the_same_seed_gives_the_same_session(tmp_path):
    first, second, other = (open_session(tiny_config(tmp_path / "run", seed=seed)) for seed in (1, 1, 2))
    weights = [one.model.state_dict()["conv.weight"].numpy() for one in (first, second, other)]
    assert np.array_equal(weights[0], weights[1]) and not np.array_equal(weights[0], weights[2])
    images = [first_batch(one).images for one in (first, second, other)]
    assert np.array_equal(images[0], images[1]) and not np.array_equal(images[0], images[2])


def test_it_says_what_it_trains(tmp_path):
    session = open_session(tiny_config(tmp_path / "run"))
    line = session.describe()
    assert line.startswith("Training tests.support.tiny_net:TinyNet (10 classes) on cpu")
    assert "1437 images, 360 for validation" in line and line.endswith("12 steps an epoch")
    assert session.plan() is None and session.recipe is None and session.loss_parts == ()
    assert session.order()["samples"] == 1437 and session.order()["batch_size"] == 128


def test_a_recipe_is_put_into_the_model(tmp_path):
    session = open_session(validate(tiny_values(tmp_path / "run") | {"Recipe": W4A4G4}, {}, "tiny"))
    assert session.recipe.quantizes_gradients
    assert {row["name"] for row in session.plan()} == {"conv", "head"}
    assert session.fp32 is None  # it does not start from trained weights


def test_a_snapshot_restores_weights_optimizer_and_progress(tmp_path):
    session = open_session(tiny_config(tmp_path / "run"))
    before = session.snapshot()
    result = TrainingStep(session)(first_batch(session), 0.1)
    session.progress.step = 1
    assert result.finite and session.not_finite() == []
    after = session.snapshot()
    assert not np.array_equal(before.model["conv.weight"], after.model["conv.weight"])

    resumed = open_session(tiny_config(tmp_path / "run"))
    resumed.restore(after, tmp_path / "latest.lowbit")
    again = resumed.snapshot()
    for part in ("model", "optimizer"):
        ours, theirs = getattr(again, part), getattr(after, part)
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert resumed.progress.step == 1


def test_weights_that_are_not_finite_are_named(tmp_path):
    session = open_session(tiny_config(tmp_path / "run"))
    session.model.head.bias.set_value(np.full(10, np.nan, np.float32))
    assert session.not_finite() == ["head.bias"]


def test_what_cannot_be_opened(tmp_path):
    values = tiny_values(tmp_path / "run")
    del values["DataLoader"]["Train"]
    with pytest.raises(LowbitError, match="there is nothing to train on"):
        open_session(validate(values, {}, "tiny"))
    values = tiny_values(tmp_path / "run")
    values["Arch"]["class_num"] = 3
    with pytest.raises(LowbitError, match=r"set Arch\.class_num=10"):
        open_session(validate(values, {}, "tiny"))
