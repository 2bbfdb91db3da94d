"""ONNX files that take images of any height and width."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

import lowbit
from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine
from lowbit.errors import LowbitError
from lowbit.models import build_model
from tests.support.onnx_models import Net, answers, normal, quantized

SIZES = [(16, 16), (24, 40), (33, 17)]


def check(path, model: nn.Layer, sizes=SIZES, tolerance: float = 1e-4) -> None:
    for engine in (OnnxRuntimeEngine(path), OpenVinoEngine(path)):
        for size in sizes:
            images = normal(2, 3, *size)
            expected = answers(model, images)
            limit = tolerance * max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(engine.run(images), expected, rtol=0, atol=limit)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(x, 3, stride=2, padding=1).mean([2, 3]),
        lambda x: F.avg_pool2d(x, 3, stride=2, padding=1).mean([2, 3]),
        lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, exclusive=False).mean([2, 3]),
        lambda x: F.adaptive_avg_pool2d(x * 2, 1).flatten(1),
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest").max([2, 3]),
        lambda x: F.interpolate(x, scale_factor=[2, 3], mode="bilinear").max([2, 3]),
        lambda x: F.pad(x, [1, 2, 1, 0]).mean([2, 3]),
        lambda x: F.adaptive_max_pool2d(paddle.concat([x, -x], 1)[:, 1:4], 1).flatten(1),
    ],
)
def test_operators(function, write):
    model = Net(function)
    check(write(model, (3, 16, 16), quantized=False, any_size=True).path, model)


@pytest.mark.parametrize("name", ["resnet20", "mobilenet_v2"])
def test_networks(name, write):
    paddle.seed(0)
    model = build_model(name, 4)
    sizes = [(32, 32), (64, 96), (45, 70)]
    check(write(model, (3, 32, 32), quantized=False, any_size=True).path, model, sizes)


def test_quantized(write):
    paddle.seed(0)
    model = quantized(build_model("resnet20", 4), (3, 32, 32))
    check(write(model, (3, 32, 32), any_size=True).path, model, [(32, 32), (64, 48)], tolerance=0.02)


def test_operators_that_need_a_size_are_named(write):
    with pytest.raises(LowbitError, match=r"pool2d.* pools images whose size is only known at run time"):
        write(Net(lambda x: F.adaptive_avg_pool2d(x, 2)), (3, 16, 16), quantized=False, any_size=True)


def test_by_the_api(tmp_path):
    paddle.seed(0)
    model = build_model("resnet20", 4)
    with pytest.raises(LowbitError, match="any_size is about the ONNX file"):
        lowbit.export(model, tmp_path, example=normal(2, 3, 32, 32), formats="paddle", any_size=True)
    lowbit.export(model, tmp_path, example=normal(2, 3, 32, 32), formats="onnx", any_size=True)
    check(tmp_path / "inference.onnx", model, [(40, 32)])
