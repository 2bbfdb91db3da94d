"""Cross-layer equalization: the network computes the same, and quantizes better."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.nn import calibrate, prepare
from lowbit.ptq import equalize
from lowbit.ptq.learned_rounding import unquantized
from tests.support.ptq_nets import images, network, recipe


def _uneven(net: nn.Layer) -> nn.Layer:
    """Channels of very different ranges between the two convolutions of the residual modules."""
    for block in net.stage:
        factor = paddle.to_tensor(np.exp2(np.arange(8) - 4.0).astype(np.float32))
        block.bn1.weight.set_value(block.bn1.weight * factor)
        block.bn1.bias.set_value(block.bn1.bias * factor)
        block.conv2.weight.set_value(block.conv2.weight / factor.reshape([-1, 1, 1, 1]))
    return net


def test_the_network_computes_the_same_and_ranges_become_alike():
    net = _uneven(network())
    expected = net(images()).numpy()
    prepare(net, recipe())
    pairs = equalize(net, images())
    assert pairs == [("stage.0.conv1", "stage.0.conv2"), ("stage.1.conv1", "stage.1.conv2")]
    with unquantized(net), paddle.no_grad():
        np.testing.assert_allclose(net(images()).numpy(), expected, rtol=1e-4, atol=1e-5)
    largest = np.abs(net.stage[0].conv2.weight.numpy()).max(axis=(1, 2, 3))
    assert largest.max() / largest.min() < 10


def test_quantized_outputs_are_closer():
    def error(*, equalized: bool) -> float:
        reference = _uneven(network())
        net = prepare(copy.deepcopy(reference), recipe(8))
        if equalized:
            equalize(net, images())
        calibrate(net, [images()])
        net.eval()
        with paddle.no_grad():
            return float(((net(images(seed=5)) - reference(images(seed=5))) ** 2).mean())

    assert error(equalized=True) < 0.7 * error(equalized=False)


@pytest.mark.parametrize("between", [nn.ReLU6(), nn.Hardswish(), nn.Sigmoid()])
def test_activations_that_are_not_homogeneous_stay(between):
    paddle.seed(0)
    net = nn.Sequential(nn.Linear(4, 8), between, nn.Linear(8, 3)).eval()
    prepare(net, recipe())
    before = [tensor.numpy() for tensor in net.parameters()]
    assert equalize(net, 5 * paddle.randn([64, 4])) == []
    assert all((a == b.numpy()).all() for a, b in zip(before, net.parameters(), strict=True))


def test_a_second_reader_prevents_it():
    class Two(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            y = nn.functional.relu(self.a(x))
            return self.b(y) + y

    net = Two().eval()
    prepare(net, recipe())
    assert equalize(net, paddle.randn([16, 4])) == []
