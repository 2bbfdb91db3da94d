from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paddle import nn

from lowbit.errors import LowbitError
from tests.support.onnx_models import Net


def lively(norm):
    """A batch norm with statistics of its own."""
    rng = np.random.default_rng(0)
    channels = norm._mean.shape[0]
    for tensor in (norm.weight, norm.bias, norm._mean):
        if tensor is not None:
            tensor.set_value(rng.standard_normal(channels, dtype=np.float32))
    norm._variance.set_value(rng.random(channels, dtype=np.float32) + 0.5)
    return norm


def test_batch_norm_of_the_input(same_in_engines):
    same_in_engines(Net(lambda x, norm: norm(x), lively(nn.BatchNorm2D(3))))


def test_batch_norm_without_parameters(same_in_engines):
    norm = nn.BatchNorm2D(3, weight_attr=False, bias_attr=False)
    same_in_engines(Net(lambda x, norm: norm(x), lively(norm)))


def test_batch_norm_behind_linear(same_in_engines):
    layers = nn.Linear(192, 5), lively(nn.BatchNorm1D(5))
    same_in_engines(Net(lambda x, linear, norm: norm(linear(x.flatten(1))), *layers))


def test_layer_norm(same_in_engines):
    same_in_engines(Net(lambda x, norm: norm(x), nn.LayerNorm([8, 8])))
    same_in_engines(Net(lambda x: F.layer_norm(x, [8])))


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(axis, same_in_engines):
    same_in_engines(Net(lambda x: F.softmax(x * 3.0, axis=axis)))


def test_dropout_is_nothing_in_evaluation(same_in_engines):
    same_in_engines(Net(lambda x: F.dropout(x, 0.4, training=False) + F.relu(x)))
    same_in_engines(Net(lambda x: F.dropout(x, 0.4, training=False, mode="downscale_in_infer")))


def test_user_prints_are_left_out(same_in_engines):
    def forward(x):
        return x if paddle.in_dynamic_mode() else paddle.static.Print(x, message="hello")

    same_in_engines(Net(forward))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kernel=st.integers(2, 3),
    stride=st.integers(1, 3),
    padding=st.sampled_from([0, 1, [1, 0], [0, 1, 1, 0]]),
    ceil=st.booleans(),
    exclusive=st.booleans(),
    size=st.integers(6, 9),
)
def test_windows(same_in_engines, kernel, stride, padding, ceil, exclusive, size):
    def both(x):
        average = F.avg_pool2d(x, kernel, stride, padding, ceil_mode=ceil, exclusive=exclusive)
        return average + F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil)

    try:
        same_in_engines(Net(both), (2, size, size))
    except LowbitError as error:  # a window outside of the image, which Paddle computes as it likes
        assert "windows that lie outside" in str(error)


@pytest.mark.parametrize("size", [1, 4, [4, 2], 3, 10])
def test_adaptive_means(size, same_in_engines):
    same_in_engines(Net(lambda x: F.adaptive_avg_pool2d(x, size)))


@pytest.mark.parametrize("size", [1, 4])
def test_adaptive_maxima(size, same_in_engines):
    same_in_engines(Net(lambda x: F.adaptive_max_pool2d(x, size)))


def test_adaptive_maxima_over_uneven_windows(write):
    with pytest.raises(LowbitError, match="windows of different sizes"):
        write(Net(lambda x: F.adaptive_max_pool2d(x, 3)), quantized=False)


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
