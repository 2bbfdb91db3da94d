from __future__ import annotations

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from tests.support.onnx_models import Net

UNARY = [
    F.relu, F.relu6, F.sigmoid, F.tanh, F.hardswish, F.hardsigmoid, F.swish, F.silu, F.gelu, F.mish, F.elu,
    F.softplus, F.hardtanh, F.leaky_relu, paddle.abs, paddle.exp, paddle.square, paddle.floor,
]  # fmt: skip


@pytest.mark.parametrize("function", UNARY, ids=lambda function: function.__name__)
def test_activations(function, same_in_engines):
    same_in_engines(Net(function))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.gelu(x, approximate=True),
        lambda x: F.leaky_relu(x, 0.3),
        lambda x: paddle.clip(x, -0.5, 0.25),
        lambda x: paddle.rsqrt(x * x + 1.0),
        lambda x: paddle.log(paddle.sqrt(x * x + 1.0)),
        lambda x: paddle.pow(x, 2),
        lambda x: paddle.scale(x, 2.0, 0.5),
        lambda x: paddle.scale(x, 2.0, 0.5, bias_after_scale=False),
        lambda x: 1.0 - x / 3.0,
        lambda x: paddle.maximum(x, x[:, :1]) - paddle.minimum(x, x[:, :, :1]) * x,
        lambda x: x + paddle.arange(8, dtype="float32"),
    ],
)
def test_arithmetic_with_broadcasting(function, same_in_engines):
    same_in_engines(Net(function))


@pytest.mark.parametrize("channels", [1, 3])
def test_prelu(channels, same_in_engines):
    layer = nn.PReLU(channels, init=0.3)
    layer._weight.set_value(paddle.linspace(0.1, 0.9, channels))
    same_in_engines(Net(lambda x, prelu: prelu(x), layer))
