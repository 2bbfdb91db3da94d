"""Both executors give the same run; what cannot run in integers is said, or is an error."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.layers import executor as module
from lowbit.layers import prepare
from lowbit.layers.executor import set_executor
from lowbit.recipe import make_recipe

GRADIENT = {"grid": "int4", "rounding": "stochastic"}


def _recipe(dy_of_grad_weight="C", dy_of_grad_input="N", weight="C"):
    x = {"grid": "int4", "sign": "auto", "observer": "mse"}
    w = {"grid": "int4"}
    return make_recipe(
        {
            "rules": [
                {
                    "forward": {"input": x, "weight": {**w, "granularity": "N"}},
                    "grad_input": {
                        "grad_output": {**GRADIENT, "granularity": dy_of_grad_input},
                        "weight": {**w, "granularity": weight},
                    },
                    "grad_weight": {
                        "grad_output": {**GRADIENT, "granularity": dy_of_grad_weight},
                        "input": x,
                    },
                }
            ]
        }
    )


def _model():
    paddle.seed(5)
    return nn.Sequential(
        nn.Conv2D(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2D(8, 8, 3, stride=2, groups=4),
        nn.ReLU(),
        nn.Conv2DTranspose(8, 6, 3, stride=2, groups=2, output_padding=1),
        nn.AdaptiveAvgPool2D(2),
        nn.Flatten(),
        nn.Linear(24, 5),
    )


def _losses(executor, recipe, steps=4):
    model = prepare(_model(), recipe)
    set_executor(model, executor)
    optimizer = paddle.optimizer.Momentum(0.05, parameters=model.parameters())
    rng, losses = np.random.default_rng(0), []
    for _ in range(steps):
        x = paddle.to_tensor(rng.standard_normal([4, 3, 9, 9]).astype(np.float32))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item())
    return losses


def test_both_executors_give_the_same_run_to_the_last_bit():
    """Where scales come out of the sums, sums are below 2^24, and nothing is rounded in another order."""
    losses = _losses("integer", _recipe())
    assert losses == _losses("simulate", _recipe())
    assert len(set(losses)) == len(losses)


def test_and_nearly_the_same_where_sums_are_split():
    recipe = _recipe(dy_of_grad_weight="NC", dy_of_grad_input="NHW")
    np.testing.assert_allclose(_losses("auto", recipe), _losses("simulate", recipe), rtol=1e-3)


def test_what_cannot_run_in_integers():
    recipe = _recipe(dy_of_grad_weight="NHW")
    with pytest.raises(
        LowbitError, match=r"integer cannot be had.*grad_weight: grad_output has scales per NHW"
    ):
        set_executor(prepare(_model(), recipe), "integer")
    (line,) = set_executor(prepare(_model(), recipe), "auto")
    assert "simulated in floats" in line and "0 and 3 more" in line
    assert set_executor(prepare(_model(), _recipe()), "auto") == ["products in integers in C++"]
    assert "asked for" in set_executor(prepare(_model(), _recipe()), "simulate")[0]


def test_without_kernels(monkeypatch):
    monkeypatch.setattr(module, "why_missing", lambda: "they were not built")
    model = prepare(_model(), _recipe())
    assert set_executor(model, "auto") == [
        "products of integers are simulated in floats: they were not built"
    ]
    with pytest.raises(LowbitError, match="they were not built"):
        set_executor(model, "integer")


def test_a_model_without_low_precision_has_no_executor():
    assert set_executor(nn.Linear(2, 2), "integer") == []
