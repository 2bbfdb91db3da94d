from __future__ import annotations

import paddle.nn.functional as F
import pytest

from tests.support.onnx_models import Net


@pytest.mark.parametrize("size", [[16, 16], [12, 20]])
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "nearest"},
        {"mode": "bilinear"},
        {"mode": "bilinear", "align_mode": 1},
        {"mode": "bilinear", "align_corners": True},
        {"mode": "bicubic"},
        {"mode": "bicubic", "align_corners": True},
    ],
)
def test_upsampling(size, options, same_in_engines):
    same_in_engines(Net(lambda x: F.interpolate(x, size=size, **options)))


def test_a_factor(same_in_engines):
    same_in_engines(Net(lambda x: F.interpolate(x, scale_factor=2, mode="nearest")))
