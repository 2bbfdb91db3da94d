from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.accel.amp_autocast import rounding
from lowbit.numerics import BF16
from lowbit.numerics.exact import add, divide, multiply, subtract
from tests.support.numerics_twin import assert_same_bits

RNG = np.random.default_rng(0)
X = RNG.integers(0, 2**32, (4, 30, 10, 20), dtype=np.uint32).view(np.float32)
OPERATIONS = [(add, np.add), (subtract, np.subtract), (multiply, np.multiply), (divide, np.divide)]
SHAPES = [(), (1,), (1, 1, 1, 1), (1, 30, 1, 1), (4, 1, 1, 1), (4, 1, 10, 20), (4, 30, 10, 20)]


@pytest.mark.parametrize(("operation", "twin"), OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_rounding(operation, twin, shape):
    y = np.asarray(RNG.uniform(0.001, 2, shape), np.float32)
    with np.errstate(all="ignore"):
        expected = twin(X, y)
    assert_same_bits(operation(paddle.to_tensor(X), paddle.to_tensor(y)).numpy(), expected)


def test_dividing_single_numbers():
    for _ in range(1000):
        x, y = (np.asarray(RNG.uniform(0.001, 2), np.float32) for _ in range(2))
        found = divide(paddle.to_tensor(x), paddle.to_tensor(y)).numpy()
        assert_same_bits(found, np.asarray(x / y))


@pytest.mark.parametrize(("operation", "twin"), OPERATIONS)
def test_mixed_precision_around_changes_nothing(operation, twin):
    x, y = paddle.to_tensor([1.001]), paddle.to_tensor([0.37, 0.11])
    expected = operation(x.expand([2]), y).numpy()
    with rounding(BF16, "O2"):
        assert_same_bits(operation(x.expand([2]), y).numpy(), expected)
        assert not np.array_equal((x.expand([2]) * y).numpy(), (x.numpy() * y.numpy()))
