"""Weights looked at between two steps."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.nn import calibrate, prepare
from lowbit.nn.inspect import kept_scales, layers_by_name, weight_health, weight_histogram
from lowbit.recipe import Recipe
from tests.support.tiny_net import build_tiny


def _prepared(**weight: str) -> nn.Layer:
    rule = {"forward": {"weight": {"grid": "int4", "granularity": "N", **weight}}}
    return prepare(build_tiny(), Recipe(rules=[rule]))


def test_health_and_histogram_are_those_of_what_is_multiplied():
    model = _prepared()
    model.eval()
    layer = model.conv
    on_grid = layer.weight_quantizer(layer.weight).numpy()
    weight = layer.weight.numpy()
    sqnr = 10 * np.log10((weight**2).sum() / ((on_grid - weight) ** 2).sum())
    assert weight_health(layer).sqnr == pytest.approx(sqnr, abs=1e-3)
    scale = np.abs(weight).max(axis=(1, 2, 3)) / 7
    assert kept_scales(layer) == {"forward.weight": pytest.approx(scale.mean(), rel=1e-5)}
    found = weight_histogram(layer)
    integers = np.rint(on_grid / scale[:, None, None, None]).astype(int)
    assert found.levels == [int((integers == level).sum()) for level in range(-8, 8)]


def test_kept_scales_of_inputs():
    rule = {"forward": {"input": {"grid": "int8", "scaling": "fixed"}}}
    model = prepare(build_tiny(), Recipe(rules=[rule], calibration={"steps": 1}))
    assert kept_scales(model.conv) == {}  # nothing seen yet
    calibrate(model, [paddle.full([2, 3, 32, 32], 254.0)])
    assert kept_scales(model.conv) == {"forward.input": pytest.approx(2.0)}
    assert weight_health(model.conv) is None
    assert weight_histogram(model.conv).levels is None


def test_layers_have_the_names_of_plans():
    assert list(layers_by_name(_prepared())) == ["conv", "head"]
    assert kept_scales(build_tiny().conv) == {}
