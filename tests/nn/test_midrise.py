"""Weights on a mid-rise grid from the recipe to the deployed model."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

import lowbit
from lowbit.analysis.bit_budget import _settings
from lowbit.errors import LowbitError
from lowbit.kernels import why_missing
from lowbit.nn import OscillationControl
from lowbit.nn.convert import set_executor
from lowbit.nn.deployed_form import deployed_weight
from lowbit.nn.inspect import weight_health, weight_histogram
from lowbit.recipe import make_recipe
from lowbit.recipe.recipe import Oscillation


def recipe(bits=2, grid=None, **more):
    weight = {
        "grid": grid or f"int{bits}-midrise",
        "granularity": "N",
        "scaling": "learned",
        "observer": "mse",
    }
    inputs = {"grid": f"int{bits}", "sign": "auto", "scaling": "learned", "observer": "hist"}
    return {"rules": [{"forward": {"input": inputs, "weight": weight}}], "calibration": {"steps": 2}, **more}


def trained(bits):
    paddle.seed(0)
    net = nn.Sequential(
        nn.Conv2D(3, 8, 3, padding=1),
        nn.BatchNorm2D(8),
        nn.ReLU(),
        nn.Conv2D(8, 8, 3),
        nn.Flatten(),
        nn.Linear(288, 4),
    )
    x = paddle.rand([8, 3, 8, 8])
    net = lowbit.quantize(net, recipe(bits), data=[x, x], example=x)
    optimizer = paddle.optimizer.Adam(0.01, parameters=net.parameters())
    net.train()
    before = [p.numpy().copy() for p in net.parameters()]
    for _ in range(3):
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    assert all(
        not np.array_equal(a, p.numpy()) for a, p in zip(before, net.parameters(), strict=True) if a.size > 8
    )
    net.eval()
    return net, x


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_trains_in_integers_as_in_floats_and_is_deployed_as_trained(bits, tmp_path):
    net, x = trained(bits)
    integers, operand = deployed_weight(net[3])
    assert set(np.unique(integers)) <= set(range(1 - 2**bits, 2**bits, 2)) and operand.bits == bits + 1
    lowbit.export(net, tmp_path, example=x)
    found = lowbit.verify(net, tmp_path, [x])
    assert found.passed, str(found)


@pytest.mark.skipif(why_missing() is not None, reason="needs the compiled kernels")
def test_integer_and_float_products_agree():
    found = []
    for executor in ("integer", "simulate"):
        net, x = trained(2)
        set_executor(net, executor)  # raises an error if not every layer can run in integers
        net.train()
        y = net(x)
        y.sum().backward()
        found.append([y.numpy(), *(p.grad.numpy() for p in net.parameters() if p.grad is not None)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scaling": "fixed"}, "for learned steps: scaling learned, observer mse"),
        ({"observer": "minmax"}, "for learned steps: scaling learned, observer mse"),
        ({"clip": "pact"}, "for weights: it has no clip"),
    ],
)
def test_weights_with_learned_steps_only(change, message):
    values = recipe()
    values["rules"][0]["forward"]["weight"] |= change
    with pytest.raises(LowbitError, match=message):
        make_recipe(values, "test").plans(nn.Sequential(nn.Linear(4, 2)))


def test_inputs_have_a_zero():
    values = recipe()
    values["rules"][0]["forward"]["input"] = {"grid": "int2-midrise", "scaling": "learned", "observer": "mse"}
    with pytest.raises(LowbitError, match="is for the weights of QAT: it has no 0"):
        make_recipe(values, "test").plans(nn.Sequential(nn.Linear(4, 2)))


@pytest.mark.parametrize("more", [{"reconstruction": {}}, {"oscillation": {"freeze": 0.1}}])
def test_what_rounds_to_any_integer_is_refused(more):
    with pytest.raises(LowbitError, match="rounds weights to any integer, int2-midrise has odd ones"):
        make_recipe(recipe(**more), "test")


def test_health_and_histogram_know_the_odd_integers():
    net, _ = trained(2)
    layer = net[3]
    integers, operand = deployed_weight(layer)
    layer.weight.set_value((integers * operand.scale).astype(np.float32))
    found = weight_histogram(layer)
    assert len(found.levels) == 4 and sum(found.levels) == integers.size and found.clipped == 0
    assert found.levels == [int((integers == level).sum()) for level in (-3, -1, 1, 3)]
    assert found.values()["spacing"] == 2 and weight_health(layer).clipped == 0


@pytest.mark.parametrize(("bits", "grid"), [(3, "int3-midrise"), (6, "int6")])
def test_bits_of_a_budget(bits, grid):
    (plan,) = make_recipe(recipe(), "test").plans(nn.Sequential(nn.Linear(4, 2))).values()
    assert _settings(plan, bits)["forward"]["weight"] == {"grid": grid}


def test_freezing_is_refused():
    values = recipe(oscillation={})
    net = lowbit.quantize(nn.Sequential(nn.Conv2D(3, 8, 3)), values, data=[paddle.rand([2, 3, 8, 8])])
    with pytest.raises(LowbitError, match="odd ones only"):
        OscillationControl(net, Oscillation(freeze=0.02))
