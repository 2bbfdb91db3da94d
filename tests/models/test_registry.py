from __future__ import annotations

import pytest

from lowbit.models import model_aliases, model_names, register_model


def test_names_are_sorted_and_without_aliases():
    names = model_names()
    assert names == sorted(names)
    assert {"mobilenet_v3_small", "mobilenet_v3_large", "mobilenet_v2"} <= set(names)
    assert {f"resnet{depth}" for depth in (18, 20, 32, 34, 50, 56)} <= set(names)
    assert model_aliases()["MobileNetV3_small_x1_0"] == "mobilenet_v3_small"
    assert not set(model_aliases()) & set(names)


@pytest.mark.parametrize("taken", ["resnet18", "ResNet18"])
def test_a_name_is_registered_once(taken):
    with pytest.raises(ValueError, match=f'"{taken}" is registered twice'):
        register_model(taken)(lambda num_classes: None)
