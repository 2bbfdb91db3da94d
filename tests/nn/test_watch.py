"""Operands seen as they are made, only while somebody watches."""

from __future__ import annotations

import paddle
import pytest

from lowbit.nn import prepare
from lowbit.nn.inspect import operand_health, watching
from lowbit.recipe import make_recipe
from tests.support.commands import W4A4G4
from tests.support.tiny_net import build_tiny


@pytest.fixture
def model():
    return prepare(build_tiny(), make_recipe(W4A4G4))


def _step(model) -> None:
    paddle.seed(0)
    model(paddle.randn([2, 3, 32, 32])).sum().backward()


def test_every_operand_is_measured(model):
    with watching(model) as seen:
        _step(model)
    assert set(seen) == {"conv", "head"}
    assert {"forward.input", "forward.weight", "grad_weight.grad_output"} <= set(seen["conv"])
    assert all(health.sqnr > 0 for health in seen["head"].values())


def test_one_can_look_in_another_way(model):
    with watching(model, lambda x, made: (x.shape, made.highest, operand_health(x, made))) as seen:
        _step(model)
    shape, highest, health = seen["head"]["grad_input.grad_output"]
    assert (shape, highest) == ([2, 4], 7) and health.clipped == 0


def test_nothing_is_seen_when_nobody_watches(model):
    with watching(model, wanted=False) as seen:
        _step(model)
    assert seen == {}
    with watching(model) as seen:
        pass
    _step(model)
    assert seen == {"conv": {}, "head": {}}
