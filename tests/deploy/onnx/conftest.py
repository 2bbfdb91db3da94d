"""A network as ONNX files in two engines beside Paddle, and small quantized networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine
from lowbit.deploy.onnx import OnnxModel, export_onnx
from lowbit.nn import calibrate, eval_mode, prepare
from lowbit.recipe import make_recipe


class Net(nn.Layer):
    """A function of images as a network: its logits are what the function gives, one row per image."""

    def __init__(self, function: Callable, *layers: nn.Layer) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.LayerList(layers)

    def forward(self, x):
        return self.function(x, *self.layers).flatten(1)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def answers(model: nn.Layer, images: np.ndarray) -> np.ndarray:
    with eval_mode(model):
        return model(paddle.to_tensor(images)).numpy()


def quantized(model: nn.Layer, shape: Sequence[int], **config) -> nn.Layer:
    """The model prepared by a PaddleSlim config or by rules, and calibrated on noise."""
    calibration = {"calibration": {"steps": 2}} if "rules" in config else {}
    prepare(model, make_recipe((config or {"weight_bits": 8}) | calibration))
    calibrate(model, [paddle.to_tensor(normal(4, *shape, seed=seed)) for seed in (1, 2)])
    return model


@pytest.fixture
def write(tmp_path) -> Callable[..., OnnxModel]:
    """Export a model and return what was made."""

    def write(model: nn.Layer, shape: Sequence[int] = (3, 8, 8), **options) -> OnnxModel:
        path: Path = tmp_path / "net.onnx"
        return export_onnx(model, path, model_name="net", image_shape=tuple(shape), **options)

    return write


@pytest.fixture
def same_in_engines(write) -> Callable[..., OnnxModel]:
    """Check that ONNX Runtime and OpenVINO answer as Paddle does, in fp32."""

    def check(model: nn.Layer, shape: Sequence[int] = (3, 8, 8)) -> OnnxModel:
        paddle.seed(0)
        made = write(model, shape, quantized=False)
        images = normal(2, *shape)
        expected = answers(model, images)
        for engine in (OnnxRuntimeEngine(made.path), OpenVinoEngine(made.path)):
            scale = max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(engine.run(images), expected, rtol=0, atol=1e-4 * scale)
        return made

    return check
