"""Cross-layer equalization: the network computes the same, and quantizes better."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.nn import calibrate, prepare
from lowbit.ptq import equalize
from lowbit.ptq.equalization import Stream
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
    residual = Stream(
        writers=("stage.0.conv2", "stem.0"), readers=("stage.0.conv1", "stage.1.conv1", "stage.1.shortcut")
    )
    inside = [Stream((f"stage.{n}.conv1",), (f"stage.{n}.conv2",)) for n in (0, 1)]
    assert equalize(net, images()) == [residual, *inside]
    with unquantized(net), paddle.no_grad():
        np.testing.assert_allclose(net(images()).numpy(), expected, rtol=1e-4, atol=1e-5)
    largest = np.abs(net.stage[0].conv2.weight.numpy()).max(axis=(1, 2, 3))
    assert largest.max() / largest.min() < 10


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_write_channels(groups):
    paddle.seed(0)
    net = nn.Sequential(
        *(nn.Conv2D(3, 4, 3), nn.ReLU(), nn.Conv2DTranspose(4, 6, 2, stride=2, groups=groups), nn.ReLU()),
        *(nn.Conv2D(6, 2, 1), nn.Flatten()),
    )
    net[2].weight.set_value(net[2].weight * paddle.to_tensor([[[[1.0]], [[9.0]], [[0.1]]] * (2 // groups)]))
    expected = net(images()).numpy()
    prepare(net, recipe())
    assert Stream(("2",), ("4",)) in equalize(net, images())
    with unquantized(net), paddle.no_grad():
        np.testing.assert_allclose(net(images()).numpy(), expected, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("between", [nn.Hardswish(), nn.Sigmoid(), nn.Hardtanh(0, 6)])
def test_activations_that_are_not_homogeneous_stay(between):
    paddle.seed(0)
    net = nn.Sequential(nn.Linear(4, 8), between, nn.Linear(8, 3)).eval()
    prepare(net, recipe())
    before = [tensor.numpy() for tensor in net.parameters()]
    assert equalize(net, 5 * paddle.randn([64, 4])) == []
    assert all((a == b.numpy()).all() for a, b in zip(before, net.parameters(), strict=True))


def test_relu6_lets_channels_grow_that_stay_below_its_cap():
    paddle.seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU6(), nn.Linear(8, 3)).eval()
    first, _, second = net
    size = np.array([0.01, 0.05, 0.1, 0.2, 0.5, 1, 20, 40], np.float32)  # the last two reach 6
    first.weight.set_value(first.weight * paddle.to_tensor(size))
    first.bias.set_value(paddle.to_tensor(size))
    x = paddle.randn([64, 4])
    expected, weights = net(x).numpy(), second.weight.numpy()
    prepare(net, recipe())
    assert equalize(net, x) == [Stream(("0",), ("2",), capped=True)]
    factor = (second.weight.numpy() / weights)[:, 0]
    assert (factor[6:] == 1).all() and (factor[:5] < 0.9).all()
    with unquantized(net), paddle.no_grad():
        np.testing.assert_allclose(net(x).numpy(), expected, rtol=1e-4, atol=1e-5)
        inputs = net[1](net[0](x)).numpy()
    assert inputs[:, :6].max() <= 6 / 1.24


def test_a_depthwise_layer_gets_channels_of_the_same_range():
    paddle.seed(0)
    net = nn.Sequential(
        nn.Conv2D(3, 8, 1), nn.BatchNorm2D(8), nn.ReLU(), nn.Conv2D(8, 8, 3, groups=8), nn.Conv2D(8, 2, 1)
    ).eval()
    net[1].weight.set_value(paddle.to_tensor(np.exp2(np.arange(8) / 2 - 2.0).astype(np.float32)))
    x = paddle.randn([8, 3, 9, 9])
    expected = net(x).numpy()
    prepare(net, recipe())
    assert equalize(net, x) == [Stream(("0",), ("3",)), Stream(("3",), ("4",))]
    with unquantized(net), paddle.no_grad():
        np.testing.assert_allclose(net(x).numpy(), expected, rtol=1e-4, atol=1e-5)
        largest = net[:3](x).abs().max([2, 3]).mean(0).numpy()
    assert largest.max() / largest.min() < 1.1


def test_what_the_network_answers_with_stays():
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
