"""`paddle.summary` of a model that was just quantized, before any batch, as PaddleSlim's demo calls it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit import QAT
from lowbit.errors import LowbitError
from lowbit.nn import prepare
from lowbit.recipe import load_recipe, make_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
SIZE = (1, 3, 8, 8)
FOLDED = {
    "batch_norm": {"fold": "training"},
    "rules": [
        {"forward": {"input": {"grid": "int8", "scaling": "moving_average"}, "weight": {"grid": "int8"}}}
    ],
}


def _net() -> nn.Layer:
    return nn.Sequential(
        nn.Conv2D(3, 4, 3, padding=1),
        nn.BatchNorm2D(4),
        nn.ReLU(),
        nn.Conv2D(4, 4, 3, padding=1),
        nn.BatchNorm2D(4),
        nn.Conv2D(4, 4, 1),
        nn.Flatten(),
        nn.Linear(256, 8),
        nn.Linear(8, 2),
    )


def _check(net: nn.Layer, *, is_ready: bool = False) -> None:
    parameters = sum(int(np.prod(parameter.shape)) for parameter in _net().parameters())
    before = {name: value.numpy() for name, value in net.state_dict().items()}
    assert paddle.summary(net, SIZE)["total_params"] >= parameters
    assert net.training
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    if not is_ready:  # anyone else is told that nothing has been seen yet
        net.eval()
        with pytest.raises(LowbitError):
            net(paddle.ones(SIZE))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_after_prepare(path):
    recipe = load_recipe(path)
    net = prepare(_net(), recipe, paddle.ones(SIZE))
    keeps_nothing = all(
        spec.scaling.name == "dynamic" and spec.sign == "fixed" and spec.clip is None
        for assigned in recipe.assign(_net())
        for spec in (assigned.plan.forward.input, assigned.plan.forward.weight)
    )
    _check(net, is_ready=keeps_nothing)


def test_after_prepare_with_batch_norms_folded_in_training():
    _check(prepare(_net(), make_recipe(FOLDED), paddle.ones(SIZE)))


@pytest.mark.parametrize("config", [{}, {"activation_preprocess_type": "PACT"}, {"weight_bits": 4}])
def test_after_paddleslims_qat(config):
    _check(QAT(config=config).quantize(_net()))


def test_of_a_single_layer():
    net = prepare(nn.Sequential(nn.Linear(4, 2)), make_recipe({"weight_bits": 4}))
    assert paddle.summary(net, (1, 4))["total_params"] == 10


def test_a_trained_model_is_summarized_as_it_is():
    net = QAT().quantize(_net())
    net(paddle.ones(SIZE))
    _check(net, is_ready=True)
