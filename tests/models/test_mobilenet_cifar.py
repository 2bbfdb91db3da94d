from __future__ import annotations

import paddle
import pytest

from lowbit.models import build_model


def trained(model: paddle.nn.Layer) -> int:
    return sum(p.size for p in model.parameters() if not p.stop_gradient)


def test_at_scale_1_it_has_the_parameters_of_mobilenet_v2():
    cifar, imagenet = build_model("mobilenet_v2_cifar", 10), build_model("mobilenet_v2", 10)
    assert trained(cifar) == trained(imagenet)


@pytest.mark.parametrize("scale", [0.35, 0.5, 1.0])
def test_features_are_8_times_smaller_than_the_image(scale):
    model = build_model("mobilenet_v2_cifar", 10, scale=scale)
    assert list(model.features(paddle.rand([1, 3, 32, 32])).shape[2:]) == [4, 4]


def test_weights_of_the_imagenet_model_fit_by_name():
    names = {key: tuple(value.shape) for key, value in build_model("mobilenet_v2", 10).state_dict().items()}
    cifar = build_model("mobilenet_v2_cifar", 10).state_dict()
    assert {key: tuple(value.shape) for key, value in cifar.items()} == names
