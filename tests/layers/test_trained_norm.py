"""Gradients of gradients through a batch norm with a sum and a ReLU, against Paddle's own operators."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from lowbit.kernels import kernels, why_missing
from lowbit.layers.norm_readers import RECTIFIED_SUM, RELU
from tests.layers.test_fast_neighbours import _both_ways, _tensor

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


@pytest.mark.parametrize("summed", [False, True])
def test_gradients_of_gradients(summed):
    values, norm = np.random.default_rng(0).standard_normal((2, 2, 3, 6, 5)), nn.BatchNorm2D(3)
    norm.weight.lowbit_reader = RECTIFIED_SUM if summed else RELU

    def run() -> list[paddle.Tensor]:
        x, other = (_tensor(part) for part in values)
        y = F.relu(norm(x) + other if summed else norm(x))
        inputs = [x, norm.weight, norm.bias, *([other] if summed else [])]
        first = paddle.grad((y**3).sum(), inputs, create_graph=True)
        sum((gradient**2).sum() for gradient in first).backward()
        return [*first, x.grad]

    paddles, ours = _both_ways(run)
    for theirs, own in zip(paddles, ours, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-3, atol=1e-2)
