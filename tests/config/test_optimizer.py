from __future__ import annotations

import pytest
from pydantic import ValidationError

from lowbit.config.optimizer import OptimizerSection, Regularizer, Schedule


@pytest.mark.parametrize("name", ["Momentum", "SGD", "RMSProp", "AdamW"])
def test_names(name):
    assert OptimizerSection(name=name).name == name


def test_the_two_names_of_weight_decay():
    assert OptimizerSection().decay == 0
    assert OptimizerSection(regularizer=Regularizer(coeff="1e-4")).decay == 1e-4
    assert OptimizerSection(weight_decay=0.05).decay == 0.05
    with pytest.raises(ValidationError, match="two names of one thing"):
        OptimizerSection(weight_decay=0.05, regularizer=Regularizer())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "Piecewise needs decay_epochs and values"),
        ({"decay_epochs": [1]}, "Piecewise needs decay_epochs and values"),
        ({"decay_epochs": [1], "values": [0.1]}, "one more value than decay_epochs, got 1 values for 1"),
        ({"decay_epochs": [2, 1], "values": [0.1, 0.2, 0.3]}, "decay_epochs must ascend"),
        ({"decay_epochs": [-1], "values": [0.1, 0.2]}, "greater than or equal to 0"),
        ({"decay_epochs": [1], "values": [0.1, -0.2]}, "greater than or equal to 0"),
    ],
)
def test_piecewise_mistakes(keys, message):
    with pytest.raises(ValidationError, match=message):
        Schedule(name="Piecewise", **keys)


def test_piecewise_may_hold_one_value_for_ever():
    assert Schedule(name="Piecewise", decay_epochs=[], values=[0.1]).values == [0.1]


@pytest.mark.parametrize(
    "keys",
    [
        {"momentum": 1},
        {"momentum": -0.1},
        {"momentum": True},
        {"epsilon": 0},
        {"clip_norm": 0},
        {"rho": 1},
        {"beta1": 1},
        {"lr": {"learning_rate": -1}},
        {"lr": {"learning_rate": float("inf")}},
        {"lr": {"warmup_epoch": -1}},
        {"lr": {"step_size": 0}},
        {"lr": {"step_size": -1.5}},
        {"lr": {"name": "MultiStepDecay"}},
        {"lr": {"name": "MultiStepDecay", "milestones": [60, 30]}},
        {"clip_norm": 1, "clip_grad": 1},
        {"clip_grad": 0},
        {"lr": {"name": "Cosin"}},
        {"regularizer": {"name": "L1"}},
        {"regularizer": {"coef": 1}},
        {"nesterov": True},
    ],
)
def test_impossible_values(keys):
    with pytest.raises(ValidationError):
        OptimizerSection(**keys)
