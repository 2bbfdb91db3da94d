"""A small network with all that the int8 form treats differently, quantized, and its export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import paddle
import pytest
from paddle import nn

from lowbit.deploy.paddle_int8.export_int8 import Int8Export, export_paddle_int8
from tests.support.exports import CLASSES, OPS, SHAPE
from tests.support.int8_models import EveryKind


@pytest.fixture
def every_kind() -> nn.Layer:
    paddle.seed(0)
    return EveryKind()


@pytest.fixture
def export_int8() -> Callable[[nn.Layer, Path], Int8Export]:
    def export(model: nn.Layer, directory: Path) -> Int8Export:
        return export_paddle_int8(
            model, directory, model_name="tiny", image_shape=SHAPE, transform_ops=OPS, classes=CLASSES
        )

    return export
