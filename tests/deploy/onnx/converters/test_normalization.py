from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

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


def lively_affine(norm):
    rng = np.random.default_rng(1)
    for tensor in norm.parameters():
        tensor.set_value(rng.standard_normal(tensor.shape, dtype=np.float32))
    return norm


def test_group_and_instance_norm(same_in_engines):
    for norm in (nn.GroupNorm(2, 6), nn.GroupNorm(6, 6, weight_attr=False, bias_attr=False)):
        same_in_engines(Net(lambda x, norm: norm(x.tile([1, 2, 1, 1])), lively_affine(norm)))
    for norm in (nn.InstanceNorm2D(3), nn.InstanceNorm2D(3, weight_attr=False, bias_attr=False)):
        same_in_engines(Net(lambda x, norm: norm(x), lively_affine(norm)))


@pytest.mark.parametrize("p", [1, 2])
def test_vector_norms(p, same_in_engines):
    same_in_engines(Net(lambda x: F.normalize(x, p=p, axis=1)))
    same_in_engines(Net(lambda x: paddle.linalg.norm(x, p=p, axis=-1)))


@pytest.mark.parametrize("axis", [-1, 1])
def test_log_softmax(axis, same_in_engines):
    same_in_engines(Net(lambda x: F.log_softmax(x, axis=axis)))


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
