from __future__ import annotations

import paddle
import pytest

from lowbit.models import build_model
from lowbit.models.vision import logits_in_evaluation


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mobilenet_v3_small", 2_542_856),
        ("mobilenet_v3_large", 5_483_032),
        ("mobilenet_v2", 3_504_872),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
    ],
)
def test_sizes_are_the_published_ones(name, parameters):
    model = build_model(name, num_classes=1000)
    trainable = sum(p.size for p in model.parameters() if not p.stop_gradient)
    assert trainable == parameters


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("ResNet18", "ResNet"),
        ("ResNet34", "ResNet"),
        ("ResNet50", "ResNet"),
        ("MobileNetV3_small_x1_0", "MobileNetV3Small"),
        ("MobileNetV3_large_x1_0", "MobileNetV3Large"),
        ("MobileNetV2", "MobileNetV2"),
    ],
)
def test_paddleclas_spellings(name, layer):
    assert type(build_model(name, num_classes=3)).__name__ == layer


def test_number_of_classes_and_width():
    wide = build_model("mobilenet_v3_small", num_classes=7)
    narrow = build_model("mobilenet_v3_small", num_classes=7, scale=0.5)
    wide.eval(), narrow.eval()
    x = paddle.rand([2, 3, 32, 32])
    assert list(wide(x).shape) == list(narrow(x).shape) == [2, 7]
    assert sum(p.size for p in narrow.parameters()) < sum(p.size for p in wide.parameters())


class ThreeOutputs(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc = paddle.nn.Linear(4, 3)

    def forward(self, x):
        y = self.fc(x)
        return [y, y * 2, y * 3]


def test_one_tensor_in_evaluation_and_all_in_training():
    net = ThreeOutputs()
    names, parameters = [name for name, _ in net.named_parameters()], net.parameters()
    net = logits_in_evaluation(net)
    x = paddle.rand([2, 4])
    assert len(net(x)) == 3
    net.eval()
    assert list(net(x).shape) == [2, 3]
    assert [name for name, _ in net.named_parameters()] == names and net.parameters()[0] is parameters[0]
    static = paddle.jit.to_static(net.forward, [paddle.static.InputSpec([None, 4])], full_graph=True)
    assert len(paddle.utils.flatten(static.concrete_program.outputs)) == 1
