"""Statistics stand still from the given step on, exactly, also in a resumed run."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import eval_mode, prepare
from lowbit.nn.batch_norm import freeze_after
from lowbit.recipe import make_recipe


def _random(shape, seed=0):
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) + 1)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("make", [nn.BatchNorm2D, lambda size: nn.BatchNorm2D(size, use_global_stats=False)])
def test_statistics_move_for_so_many_steps_and_no_more(steps, make):
    plain, norm = make(4), make(4)
    freeze_after(norm, steps)
    for step in range(5):
        x = _random([2, 4, 3, 3], seed=step)
        expected = plain if step < steps else _in_evaluation(plain)
        y = norm(x)
        np.testing.assert_array_equal(y.numpy(), expected(x).numpy())
        assert norm.training and norm.steps.item() == min(step + 1, steps)
        np.testing.assert_array_equal(norm._mean.numpy(), plain._mean.numpy())
        np.testing.assert_array_equal(norm._variance.numpy(), plain._variance.numpy())


def _in_evaluation(plain):
    def run(x):
        return nn.functional.batch_norm(x, plain._mean, plain._variance, plain.weight, plain.bias)

    return run


def test_weight_and_bias_go_on_learning():
    norm = nn.BatchNorm1D(3)
    freeze_after(norm, 0)
    norm._mean.set_value(paddle.to_tensor([1.0, -1.0, 0.0]))
    norm._variance.set_value(paddle.to_tensor([4.0, 1.0, 0.25]))
    x = _random([5, 3])
    x.stop_gradient = False
    dy = _random([5, 3], seed=1)
    (norm(x) * dy).sum().backward()
    inverse = 1 / np.sqrt(norm._variance.numpy() + norm._epsilon)
    normal = (x.numpy() - norm._mean.numpy()) * inverse
    np.testing.assert_allclose(norm.weight.grad.numpy(), (dy.numpy() * normal).sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.bias.grad.numpy(), dy.numpy().sum(0), rtol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), dy.numpy() * inverse, rtol=1e-5)


def test_passes_in_evaluation_do_not_count():
    norm = nn.BatchNorm1D(3)
    freeze_after(norm, 2)
    with eval_mode(norm):
        norm(_random([4, 3]))
    assert norm.steps.item() == 0


@pytest.mark.parametrize("fold", ["training", "export"])
def test_a_resumed_run_freezes_at_the_same_step(fold):
    recipe = make_recipe(
        {
            "rules": [{"forward": {"weight": {"grid": "int8"}}}],
            "batch_norm": {"fold": fold, "freeze_after": 3},
        }
    )

    def fresh():
        paddle.seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1D(4), nn.ReLU(), nn.Linear(4, 2))
        model = prepare(net, recipe, _random([4, 3]))
        return model, paddle.optimizer.SGD(0.1, parameters=model.parameters())

    def train(model, optimizer, seeds):
        for seed in seeds:
            (model(_random([4, 3], seed)) ** 2).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
        return {key: value.numpy() for key, value in model.state_dict().items()}

    expected = train(*fresh(), range(6))
    halfway = train(*fresh(), range(2))
    model, optimizer = fresh()
    missing, unexpected = model.set_state_dict(halfway)
    assert not missing and not unexpected
    at_freezing = train(model, optimizer, range(2, 3))
    found = train(model, optimizer, range(3, 6))
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    for key in ("1._mean", "1._variance"):
        np.testing.assert_array_equal(at_freezing[key], expected[key])
        assert not np.array_equal(halfway[key], expected[key])


def test_what_cannot_be_frozen_is_named():
    class Own(nn.BatchNorm2D):
        def forward(self, x):
            return super().forward(x) * 2

    for norm in (nn.BatchNorm(3), Own(3)):
        with pytest.raises(LowbitError, match=r'"stem.bn".*leave freeze_after out'):
            freeze_after(norm, 3, name="stem.bn")
        assert not norm.state_dict().get("steps")
