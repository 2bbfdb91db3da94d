"""Oscillating weights: measured, damped, frozen."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn.convert import prepare
from lowbit.nn.oscillation import OscillationControl, OscillationState, oscillation_of
from lowbit.recipe import make_recipe

RECIPE = {
    "rules": [{"forward": {"weight": {"grid": "int4", "granularity": "N", "scaling": "learned"}}}],
}


def _net(**oscillation) -> tuple[nn.Layer, OscillationControl]:
    paddle.seed(0)
    recipe = make_recipe(RECIPE | {"oscillation": oscillation})
    net = prepare(nn.Sequential(nn.Linear(4, 3)), recipe)
    net(paddle.randn([2, 4]))  # the step starts
    return net, OscillationControl(net, recipe.oscillation)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.sampled_from([0.01, 0.25, 1.0]))
def test_the_frequency_is_that_of_changes_of_direction(integers, momentum):
    state = OscillationState([1], momentum=momentum)
    for integer in integers:
        state.update(np.array([integer]))
    frequency, direction, mean = 0.0, 0, float(integers[0])
    for before, now in pairwise(integers):
        change = np.sign(now - before)
        frequency = (1 - momentum) * frequency + momentum * float(change * direction < 0)
        direction = change or direction
        mean = (1 - momentum) * mean + momentum * now
    np.testing.assert_allclose(state.frequency.item(), frequency, atol=1e-6)
    np.testing.assert_allclose(state.mean.item(), mean, atol=1e-5)


def test_a_weight_that_oscillates_is_counted_and_one_that_goes_on_is_not():
    net, control = _net()
    weight, scale = net[0].weight, net[0].weight_quantizer.scale()
    base = np.zeros(weight.shape, np.float32)
    for step in range(6):
        base[0, 0] = step % 2  # up and down
        base[1, 1] = step  # up all the time
        weight.set_value(paddle.to_tensor(base) * scale)
        control.update()
    shares = oscillation_of(net[0]).shares()
    assert shares == {"oscillating": pytest.approx(1 / 12), "frozen": 0.0}


def test_frozen_weights_keep_their_integer_whatever_the_optimizer_does():
    net, control = _net(freeze=0.02, momentum=0.1)
    quantizer = net[0].weight_quantizer
    rng = np.random.default_rng(0)
    for _ in range(40):
        integers = rng.integers(-2, 3, net[0].weight.shape).astype(np.float32)
        net[0].weight.set_value(paddle.to_tensor(integers) * quantizer.scale())
        control.update()
    state = oscillation_of(net[0])
    assert state.shares()["frozen"] == 1.0 and state.shares()["oscillating"] == 0.0
    held = state.integers.numpy()
    quantizer.step.value.set_value(quantizer.step.value * 1.5)  # a learned step goes on learning
    net[0].weight.set_value(net[0].weight + 10)
    control.update()
    np.testing.assert_array_equal(quantizer.integers(net[0].weight)[0].numpy(), held)
    np.testing.assert_array_equal(state.integers.numpy(), held)


def test_damping_pulls_weights_to_their_values_on_the_grid():
    net, control = _net(damp=0.5)
    layer = net[0]
    net(paddle.randn([2, 4])).sum().backward()
    before = layer.weight.grad.numpy()
    control.damp(0.0)
    np.testing.assert_array_equal(layer.weight.grad.numpy(), before)
    control.damp(1.0)
    integers, scale = layer.weight_quantizer.integers(layer.weight)
    low, high = -8 * scale.numpy(), 7 * scale.numpy()
    inside = np.clip(layer.weight.numpy(), low, high)
    expected = before + (inside - (integers * scale).numpy())  # 2 * 0.5
    np.testing.assert_allclose(layer.weight.grad.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_the_state_is_saved_and_restored():
    net, control = _net(freeze=0.05)
    for sign in (1, -1, 1, -1):
        net[0].weight.set_value(net[0].weight * sign)
        control.update()
    again, other = _net(freeze=0.05)
    again.set_state_dict(net.state_dict())
    for each, its in ((net, control), (again, other)):
        each[0].weight.set_value(each[0].weight * -1)
        its.update()
    for name, value in net.state_dict().items():
        assert value.numpy().tobytes() == again.state_dict()[name].numpy().tobytes(), name


def test_what_cannot_be():
    with pytest.raises(LowbitError, match=r"oscillation: \{\}"):
        OscillationControl(
            nn.Sequential(nn.Linear(2, 2)), make_recipe(RECIPE | {"oscillation": {}}).oscillation
        )
    with pytest.raises(LowbitError, match="fold: training"):
        make_recipe(RECIPE | {"oscillation": {"freeze": 0.1}, "batch_norm": {"fold": "training"}})
