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
from tests.support.onnx_models import answers, normal


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
