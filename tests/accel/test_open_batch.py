"""`fold` in programs for batches of any size."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F
from paddle.static import InputSpec

from lowbit.accel.open_batch import fold_as_convolution, open_batch


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ([2, 27, 16], {"output_sizes": 8, "kernel_sizes": 3, "strides": 2, "paddings": 1}),
        ([2, 12, 16], {"output_sizes": [8, 9], "kernel_sizes": 2, "strides": 2}),
        ([1, 4, 12], {"output_sizes": [4, 5], "kernel_sizes": 2, "paddings": [0, 1], "dilations": [1, 3]}),
    ],
)
def test_as_paddles(shape, arguments):
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
    np.testing.assert_array_equal(fold_as_convolution(x, **arguments).numpy(), F.fold(x, **arguments).numpy())


class Folding(nn.Layer):
    def forward(self, x):
        columns = F.unfold(x, [2, 2], strides=2)
        return F.fold(columns * 2, [4, 6], kernel_sizes=[2, 2], strides=[2, 2])


def test_a_program_for_any_batch(tmp_path):
    paddles = F.fold
    with open_batch(), open_batch():
        paddle.jit.save(Folding(), str(tmp_path / "net"), input_spec=[InputSpec([None, 3, 4, 6])])
    assert F.fold is paddles
    loaded = paddle.jit.load(str(tmp_path / "net"))
    for batch in (1, 3):
        x = paddle.rand([batch, 3, 4, 6])
        np.testing.assert_allclose(loaded(x).numpy(), 2 * x.numpy(), rtol=1e-6)


def test_outside_of_programs_it_stays_paddles():
    with open_batch():
        assert F.fold(paddle.ones([1, 4, 1]), 2, 2).numpy().tolist() == [[[[1, 1], [1, 1]]]]
