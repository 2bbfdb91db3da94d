"""Pairs of a layer and its batch norm are found by what the model does, whatever its values are."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn.bn_folding import find_foldable


class Net(nn.Layer):
    """A convolution, its batch norm, and something that may look at what stands between them."""

    def __init__(self, between, *, shape=(4, 4, 1)):
        super().__init__()
        self.conv, self.norm = nn.Conv2D(*shape), nn.BatchNorm2D(4)
        self.between = between

    def forward(self, x):
        return self.between(self, x)


def _used_elsewhere(net, x):
    y = net.conv(x)
    return net.norm(y) + y


def _changed_in_place(net, x):
    y = net.conv(x)
    y.add_(paddle.ones([1]))
    return net.norm(y)


def _used_in_training_only(net, x):
    y = net.conv(x)
    z = net.norm(y)
    return z + y if net.training else z


@pytest.mark.parametrize("between", [_used_elsewhere, _changed_in_place])
def test_a_new_models_batch_norm_hides_nothing(between):
    """Its gain is 1 and its mean 0: a wrong fold would not be seen in the answers."""
    model = Net(between)
    found = find_foldable(model, paddle.randn([2, 4, 3, 3]))
    assert not found.pairs and found.left_alone == {"norm": "the output of conv is used elsewhere, too"}


@pytest.mark.parametrize("between", [lambda net, x: net.norm(net.conv(x)), _used_in_training_only])
def test_pairs(between):
    model = Net(between)
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    model.train()
    found = find_foldable(model, paddle.randn([2, 4, 3, 3]))
    assert found.pairs == [("conv", "norm")] and not found.left_alone
    assert model.training and type(model.norm) is nn.BatchNorm2D
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    assert not model.conv._forward_post_hooks and not model.norm._forward_pre_hooks


def test_a_dropout_that_draws_in_evaluation_does_not_disturb():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1D(4), nn.Linear(4, 4))
    model[2].register_forward_post_hook(lambda layer, given, out: out * paddle.rand([1]))
    assert find_foldable(model, paddle.randn([2, 4])).pairs == [("0", "1")]


class Doubled(nn.BatchNorm2D):
    def forward(self, x):
        return super().forward(x) * 2


def test_reasons():
    x = paddle.randn([2, 4, 3, 3])
    hooked = nn.Conv2D(4, 4, 1)
    hooked.register_forward_post_hook(lambda layer, given, out: out * 2)
    cases = {
        "hooks": nn.Sequential(hooked, nn.BatchNorm2D(4)),
        "forward of its own": nn.Sequential(nn.Conv2D(4, 4, 1), Doubled(4)),
        "statistics of the batch": nn.Sequential(
            nn.Conv2D(4, 4, 1), nn.BatchNorm2D(4, use_global_stats=False)
        ),
        "old paddle.nn.BatchNorm": nn.Sequential(nn.Conv2D(4, 4, 1), nn.BatchNorm(4)),
        "another axis": nn.Sequential(nn.Linear(3, 3), nn.BatchNorm2D(4)),
    }
    for why, model in cases.items():
        found = find_foldable(model, x)
        assert not found.pairs and why in found.left_alone["1"], found


def test_bad_input():
    model = nn.Sequential(nn.Conv2D(4, 4, 1), nn.BatchNorm2D(4))
    with pytest.raises(LowbitError, match=r"does not run on the example inputs \[2, 3, 3, 3\].*image_shape"):
        find_foldable(model, paddle.randn([2, 3, 3, 3]))
    with pytest.raises(LowbitError, match="NaN or Inf"):
        find_foldable(model, paddle.full([2, 4, 3, 3], float("nan")))
    assert not model[0]._forward_post_hooks
