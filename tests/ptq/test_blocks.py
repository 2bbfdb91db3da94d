"""Blocks from a model's own structure."""

from __future__ import annotations

import paddle
import pytest
from paddle import nn
from paddle.vision.models import MobileNetV2, mobilenet_v3_small, resnet18

from lowbit.models import build_model
from lowbit.nn import calibrate, prepare
from lowbit.ptq.blocks import find_blocks
from tests.support.ptq_nets import calibrated, images, network, recipe


def _blocks(net: nn.Layer, x: paddle.Tensor):
    net.eval()
    chosen = recipe()
    prepare(net, chosen)
    calibrate(net, [x])
    return find_blocks(net, x)


def test_residual_modules_are_blocks():
    found = find_blocks(calibrated(network(), recipe()), images(2))
    assert [block.modules for block in found.blocks] == [("stem",), ("stage.0",), ("stage.1",), ("head",)]
    assert [block.follows for block in found.blocks] == [False, True, True, False]
    assert not found.left_alone


def test_cifar_resnet_has_a_block_for_each_basic_block():
    found = _blocks(build_model("resnet20", 10), paddle.randn([2, 3, 32, 32]))
    assert found.blocks[0].modules == ("conv1", "bn1")
    assert [block.name for block in found.blocks[1:-1]] == [
        f"layer{s}.{b}" for s in (1, 2, 3) for b in (0, 1, 2)
    ]
    assert found.blocks[-1].modules == ("linear",)


def test_mobilenet_v2_has_a_block_for_each_inverted_residual():
    found = _blocks(MobileNetV2(scale=0.25, num_classes=4), paddle.randn([2, 3, 32, 32]))
    assert [block.name for block in found.blocks[:18]] == [f"features.{number}" for number in range(18)]
    assert all(block.follows for block in found.blocks[1:-1])
    assert found.blocks[-1].name == "classifier"


def test_squeeze_and_excitation_is_inside_of_its_block():
    found = _blocks(mobilenet_v3_small(scale=0.35, num_classes=4), paddle.randn([2, 3, 32, 32]))
    assert {block.name for block in found.blocks} >= {f"blocks.{number}" for number in range(11)}


def test_projection_shortcuts_are_inside_of_their_block():
    found = _blocks(resnet18(num_classes=4), paddle.randn([2, 3, 32, 32]))
    names = [block.name for block in found.blocks]
    assert names == ["conv1", *(f"layer{s}.{b}" for s in (1, 2, 3, 4) for b in (0, 1)), "fc"]


def test_plain_layers_take_what_follows_them():
    net = nn.Sequential(
        nn.Conv2D(3, 4, 3),
        nn.BatchNorm2D(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, 8),
        nn.ReLU(),
        nn.Linear(8, 2),
    )
    found = _blocks(net, paddle.randn([2, 3, 8, 8]))
    assert [block.modules for block in found.blocks] == [("0", "1", "2", "3"), ("4", "5"), ("6",)]


def test_a_layer_that_runs_twice_is_left_alone():
    class Twice(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return self.last(self.shared(self.shared(x)))

    found = _blocks(Twice(), paddle.randn([2, 4]))
    assert [block.modules for block in found.blocks] == [("last",)]
    assert list(found.left_alone) == ["shared"]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_stays_as_it_was(training):
    net = calibrated(network(), recipe())
    net.train() if training else net.eval()
    before = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    find_blocks(net, images(2))
    assert net.training == training
    assert all((before[name] == tensor.numpy()).all() for name, tensor in net.state_dict().items())
    assert not any(layer._forward_pre_hooks or layer._forward_post_hooks for layer in net.sublayers())
