"""What the operators between convolutions keep for backward, and what they do when more is asked of them."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.accel import norm_ops as module
from lowbit.accel.fused_norm import BatchNorm
from lowbit.accel.norm_ops import fast_norm_ops
from lowbit.errors import LowbitError
from lowbit.kernels import kernels, why_missing
from lowbit.nn.convert import prepare
from lowbit.nn.qt_autograd import seed_rounding
from lowbit.recipe.load import make_recipe
from tests.support.accel_pairs import both_ways, tensor

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


@pytest.mark.parametrize("name", ["batch norm", "relu"])
def test_gradients_of_gradients(name):
    values, norm = np.random.default_rng(0).standard_normal((2, 3, 6, 6)), nn.BatchNorm2D(3)
    operator, parameters = (F.relu, []) if name == "relu" else (norm, [norm.weight, norm.bias])

    def run() -> list[Tensor]:
        x = tensor(values)
        first = paddle.grad((operator(x) ** 3).sum(), [x, *parameters], create_graph=True)
        sum((gradient**2).sum() for gradient in first).backward()
        return [*first, x.grad]

    paddles, ours = both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-3, atol=1e-3)


def test_gradients_of_gradients_of_a_max_pool():
    """Which Paddle's own does not give."""
    x = tensor(np.random.default_rng(0).standard_normal((2, 3, 6, 6)))
    with fast_norm_ops():
        y = F.max_pool2d(x, 3, 2, 1)
        (times,) = paddle.grad(y.sum(), x, retain_graph=True)  # as often as it is a window's largest
        (first,) = paddle.grad((y**3).sum(), x, create_graph=True)
        (second,) = paddle.grad((first**2).sum(), x)
    np.testing.assert_allclose(first.numpy(), (times * 3 * x**2).numpy(), rtol=1e-5)
    np.testing.assert_allclose(second.numpy(), (36 * times**2 * x**3).numpy(), rtol=1e-4)


def test_a_tensor_changed_in_place_before_its_gradient_is_an_error():
    norm, x = nn.BatchNorm2D(3), paddle.randn([2, 3, 4, 4])
    with fast_norm_ops():
        y = norm(x)
        x.add_(paddle.ones([1]))
        with pytest.raises((OSError, LowbitError), match="changed in place"):
            y.sum().backward()


def _low_precision(bits: int) -> nn.Layer:
    grid = {"grid": f"int{bits}", "granularity": "N"}
    gradient = {"grid": f"int{bits}", "rounding": "stochastic"}
    rule = {
        "forward": {"input": grid, "weight": grid},
        "grad_input": {"grad_output": gradient, "weight": grid | {"granularity": "C"}},
        "grad_weight": {"grad_output": gradient, "input": grid},
    }
    paddle.seed(0)
    model = nn.Sequential(nn.Conv2D(3, 5, 3, bias_attr=False), nn.BatchNorm2D(5), nn.ReLU())
    prepare(model, make_recipe({"rules": [rule]}))
    seed_rounding(model, 0)
    return model


@pytest.mark.parametrize(("bits", "packed"), [(4, True), (8, False)])
def test_behind_a_product_of_4_bits_a_batch_norm_keeps_its_input_in_two_bytes(bits, packed, monkeypatch):
    kept, found = [], []
    backward = BatchNorm.backward
    for forget in (False, True):
        model = _low_precision(bits)
        x = tensor(np.random.default_rng(0).standard_normal((2, 3, 8, 8)))
        if forget:
            monkeypatch.setattr(module, "attached_scale", lambda x: None)
        monkeypatch.setattr(
            BatchNorm, "backward", lambda ctx, dy: kept.append(ctx.multiples) or backward(ctx, dy)
        )
        with fast_norm_ops():
            model(x).square().sum().backward()
        learned = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
        found.append([tensor.grad.numpy() for tensor in (x, *learned)])
    assert (kept[0] is not None) == packed and kept[1] is None
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.add_(paddle.full([1], 0.37)),
        lambda y: y.scale_(2.0),
        lambda y: y.__setitem__((slice(None), 0), 0.123),
        lambda y: y.__setitem__((1, 2, 3, 3), 1e-30),
        lambda y: y.set_value(np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)),
        lambda y: y.reshape_([2, 15, 2, 6]),
        lambda y: y.reshape_([4, 5, 3, 6]),
        lambda y: y.transpose_([0, 2, 1, 3]),
    ],
    ids=["sum", "product", "a channel", "a value", "all", "channels", "images", "transposed"],
)
def test_a_product_of_4_bits_changed_in_place_is_normalized_as_it_is(change, monkeypatch):
    """The scale that came with it is a proposal: what the batch norm keeps is verified."""
    found = []
    for forget in (False, True):
        model = _low_precision(4)
        x = tensor(np.random.default_rng(0).standard_normal((2, 3, 8, 8)))
        if forget:
            monkeypatch.setattr(module, "attached_scale", lambda x: None)
        with fast_norm_ops():
            y = model[0](x)
            change(y)
            norm = nn.BatchNorm2D(y.shape[1])
            z = norm(y)
            z.square().sum().backward()
        found.append([tensor.numpy() for tensor in (z, norm.weight.grad, norm.bias.grad, norm._mean)])
        found[-1] += [] if x.grad is None else [x.grad.numpy(), model[0].weight.grad.numpy()]
    assert len(found[0]) == len(found[1])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_there_are_no_gradients_of_gradients_of_what_is_kept_in_two_bytes():
    model, x = _low_precision(4), tensor(np.random.default_rng(0).standard_normal((2, 3, 8, 8)))
    learned = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    with fast_norm_ops(), pytest.raises((OSError, LowbitError), match="no gradients of gradients"):
        paddle.grad(model(x).sum(), [x, *learned], create_graph=True)
