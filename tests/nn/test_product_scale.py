"""The scale that a product of small integers leaves for whoever keeps it."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.accel.norm_ops import attached_scale
from lowbit.kernels.gemm import Geometry
from lowbit.nn.int_matmul import simulate
from lowbit.nn.linear_ops import Convolution
from lowbit.nn.qt_autograd import attach_scale
from lowbit.nn.qtensor import QTensor

GEOMETRY = Geometry(
    input=(2, 3, 4, 4), outputs=5, kernel=(3, 3), stride=(1, 1), padding=(0,) * 4, dilation=(1, 1), groups=1
)


def _operand(shape: list[int], scale: list[int], *, bits: int, seed: int) -> QTensor:
    random, most = np.random.default_rng(seed), 2 ** (bits - 1) - 1
    integers = paddle.to_tensor(random.integers(-most, most + 1, shape).astype(np.int8))
    scales = paddle.to_tensor(random.uniform(0.1, 1, scale).astype(np.float32))
    return QTensor(data=integers, scale=scales, lowest=-most, highest=most)


def test_the_product_is_whole_multiples_of_it():
    x = _operand([2, 3, 4, 4], [2, 1, 1, 1], bits=4, seed=0)
    weight = _operand([5, 3, 3, 3], [5, 1, 1, 1], bits=4, seed=1)
    y = simulate(Convolution(GEOMETRY), "forward", x, weight)
    attach_scale(y, Convolution(GEOMETRY), x, weight)
    scale = attached_scale(y)
    assert scale.shape == [2, 5]
    multiples = y.numpy() / scale.numpy()[..., None, None]
    np.testing.assert_allclose(multiples, np.rint(multiples), atol=1e-4)
    assert np.abs(multiples).max() > 10


@pytest.mark.parametrize(
    ("bits", "of_x"), [(8, [2, 1, 1, 1]), (4, [2, 3, 1, 1])], ids=["8 bits", "scales that differ in the sum"]
)
def test_none_where_two_bytes_could_not_hold_it_or_there_is_no_one_scale(bits, of_x):
    x = _operand([2, 3, 4, 4], of_x, bits=bits, seed=0)
    weight = _operand([5, 3, 3, 3], [1, 1, 1, 1], bits=bits, seed=1)
    y = paddle.zeros([2, 5, 2, 2])
    attach_scale(y, Convolution(GEOMETRY), x, weight)
    assert attached_scale(y) is None


def test_an_operand_in_full_has_none():
    y = paddle.zeros([2, 5, 2, 2])
    full = QTensor(data=paddle.zeros([2, 3, 4, 4]))
    attach_scale(y, Convolution(GEOMETRY), full, _operand([5, 3, 3, 3], [1, 1, 1, 1], bits=4, seed=1))
    assert attached_scale(y) is None and attached_scale(paddle.zeros([1])) is None
