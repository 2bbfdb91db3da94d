"""Calibration with gradients: the observer `sensitivity`."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import calibrate, prepare
from lowbit.recipe import make_recipe

RULE = {"forward": {"input": {"grid": "int8", "sign": "auto", "scaling": "fixed", "observer": "sensitivity"}}}
RECIPE = {"rules": [RULE], "calibration": {"steps": 2}}


class Skip(nn.Layer):
    """A layer that reads one of two features, beside a connection that reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.linear.weight.set_value(paddle.to_tensor([[1.0], [0.0]]))

    def forward(self, x):
        return paddle.concat([self.linear(x), x], axis=1)


def values() -> paddle.Tensor:
    """A feature up to 1, and one of 100, which the layer does not read."""
    x = np.full([64, 2], 100, np.float32)
    x[:, 0] = np.linspace(0, 1, 64)
    return paddle.to_tensor(x)


def range_of(model: nn.Layer) -> float:
    return model.linear.input_quantizer.kept.range.item()


def test_what_the_layer_does_not_read_is_clipped():
    model = prepare(Skip(), make_recipe(RECIPE))
    assert calibrate(model, [values(), [values()]]) == 2
    assert 0.9 < range_of(model) < 2
    assert str(model.linear.input_quantizer.grid()) == "uint8"
    plain = make_recipe(
        {"rules": [{"forward": {"input": {"grid": "int8", "scaling": "fixed"}}}]}
        | {"calibration": {"steps": 1}}
    )
    other = prepare(Skip(), plain)
    calibrate(other, [values()])
    assert range_of(other) == 100


def test_the_model_and_its_gradients_stay():
    model = prepare(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), make_recipe(RECIPE))
    model[0].bias.stop_gradient = True
    x = paddle.randn([8, 3])
    model[2].weight.sum().backward()
    before = model[2].weight.grad.numpy()
    calibrate(model, [x])
    np.testing.assert_array_equal(model[2].weight.grad.numpy(), before)
    assert model[0].weight.grad is None and x.stop_gradient
    assert [p.stop_gradient for p in model.parameters()] == [False, True, False, False]


def test_it_is_the_same_every_time():
    def found() -> list[float]:
        paddle.seed(0)
        model = prepare(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), make_recipe(RECIPE))
        calibrate(model, [paddle.to_tensor(np.random.default_rng(0).normal(size=[32, 3]).astype("float32"))])
        return [layer.input_quantizer.kept.range.item() for layer in (model[0], model[2])]

    assert found() == found()


def test_nan_in_a_batch_and_answers_without_gradients():
    model = prepare(Skip(), make_recipe(RECIPE))
    calibrate(model, [paddle.full([4, 2], float("nan")), values()])
    assert range_of(model) < 2
    blind = prepare(Skip(), make_recipe(RECIPE))
    blind.linear.register_forward_post_hook(lambda layer, given, out: out.detach())
    calibrate(blind, [values()])
    assert range_of(blind) == 100  # nothing is known to be unimportant


@pytest.mark.parametrize(
    "forward",
    [
        {"weight": {"grid": "int8", "scaling": "fixed", "observer": "sensitivity"}},
        {"input": {"grid": "int8", "observer": "sensitivity"}},
        {"input": {"grid": "int8", "scaling": "learned", "observer": "sensitivity"}},
        {"input": {"grid": "int8", "scaling": "fixed", "granularity": "C", "observer": "sensitivity"}},
    ],
)
def test_where_it_cannot_be(forward):
    with pytest.raises(LowbitError, match="observer sensitivity is for the inputs"):
        prepare(Skip(), make_recipe({"rules": [{"forward": forward}], "calibration": {"steps": 1}}))
