from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.numerics.groups import (
    groups_as_rows,
    largest_magnitude,
    shape_of_scales,
    sum_groups,
    sum_to_shape,
)

X = np.random.default_rng(0).integers(-9, 9, (2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_reductions(axes):
    x = paddle.to_tensor(X)
    expected = np.abs(X).max(axis=axes, keepdims=True) if axes else np.abs(X)
    assert np.array_equal(largest_magnitude(x, axes).numpy(), expected)
    assert np.array_equal(
        sum_groups(x, axes, "float64").numpy(), X.sum(axis=axes, keepdims=True) if axes else X
    )
    assert shape_of_scales(X.shape, axes) == list(expected.shape)


@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_rows_are_in_the_order_of_the_scales(axes):
    rows, shape = groups_as_rows(paddle.to_tensor(X), axes, "kl")
    expected = np.abs(X).sum(axis=axes, keepdims=True) if axes else np.abs(X)
    assert np.array_equal(rows.sum(axis=1).reshape(shape), expected)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 1), (1, 3, 1), (2, 3, 4), (2, 1, 1)])
def test_sum_to_shape_is_the_gradient_of_broadcasting(shape):
    small = paddle.ones(list(shape))
    small.stop_gradient = False
    (small * paddle.to_tensor(X)).sum().backward()
    assert np.array_equal(sum_to_shape(paddle.to_tensor(X), list(shape)).numpy(), small.grad.numpy())
