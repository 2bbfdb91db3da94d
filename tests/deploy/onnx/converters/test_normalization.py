from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from tests.support.onnx_models import Net


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
