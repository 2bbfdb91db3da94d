from __future__ import annotations

import paddle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paddle import nn

from tests.support.onnx_models import Net


def apply(x, layer):
    return layer(x)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups=st.sampled_from([1, 2, 4]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.sampled_from([0, 1, [1, 2], [0, 1, 2, 1], "SAME", "VALID"]),
    bias=st.booleans(),
)
def test_convolutions(same_in_engines, groups, kernel, stride, dilation, padding, bias):
    channels, bias_attr = 8 if groups < 4 else 4, None if bias else False
    layer = nn.Conv2D(4, channels, kernel, stride, padding, dilation, groups, bias_attr=bias_attr)
    same_in_engines(Net(apply, layer), (4, 9, 8))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups=st.sampled_from([1, 2, 4]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.sampled_from([0, [0, 1], [0, 1, 1, 0]]),
    output_padding=st.integers(0, 1),
)
def test_transposed_convolutions(same_in_engines, groups, kernel, stride, dilation, padding, output_padding):
    layer = nn.Conv2DTranspose(
        4, 4, kernel, stride, padding, min(output_padding, stride - 1), groups=groups, dilation=dilation
    )
    same_in_engines(Net(apply, layer), (4, 5, 6))


def test_a_given_output_size(same_in_engines):
    layer = nn.Conv2DTranspose(3, 4, 3, stride=2)
    same_in_engines(Net(lambda x, layer: layer(x, output_size=[18, 17]), layer))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes(mode, same_in_engines):
    same_in_engines(Net(apply, nn.Conv2D(3, 4, 3, padding=1, padding_mode=mode)))


def test_channels_last(same_in_engines):
    layers = nn.Conv2D(3, 4, 3, data_format="NHWC"), nn.BatchNorm2D(4, data_format="NHWC")
    same_in_engines(Net(lambda x, conv, norm: norm(conv(x.transpose([0, 2, 3, 1]))), *layers))


@pytest.mark.parametrize("transposed", [(False, True), (True, False)])
def test_products_of_two_tensors(transposed, same_in_engines):
    first, second = transposed
    same_in_engines(Net(lambda x: paddle.matmul(x, x, transpose_x=first, transpose_y=second)))


def test_linear_on_more_axes(same_in_engines):
    same_in_engines(Net(apply, nn.Linear(8, 5)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: paddle.bmm(x[:, 0], x[:, 1]),
        lambda x: paddle.einsum("nchw,nkhw->nck", x, x),
        lambda x: paddle.einsum("nchw, ncwk -> nchk", x, x),
        lambda x: paddle.inner(x, x[0, 0] * 0 + 1),
    ],
)
def test_products_of_two_activations(function, same_in_engines):
    same_in_engines(Net(function))
