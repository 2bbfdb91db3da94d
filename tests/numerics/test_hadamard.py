from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.numerics import Rotation, hadamard, hadamard_transform, parse_rotation
from lowbit.numerics.hadamard import butterflies


def _matrix(block: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    return matrix / np.sqrt(block)


@given(st.integers(0, 6), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_is_the_matrix_along_the_axis(power, blocks, axis, seed):
    block = 2**power
    shape = [2, 3, 2]
    shape[axis] = block * blocks
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    rows = np.moveaxis(x.astype(np.float64), axis, -1).reshape(-1, blocks, block)
    expected = np.moveaxis((rows @ _matrix(block)).reshape(np.moveaxis(x, axis, -1).shape), -1, axis)
    found = hadamard_transform(paddle.to_tensor(x), axis, block)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_turns_back():
    x = paddle.randn([2, 48, 3])
    turn = parse_rotation("hadamard(32)")  # 16 is the largest block that divides 48
    np.testing.assert_allclose(turn(turn(x, 1), 1).numpy(), x.numpy(), atol=1e-6)
    assert not np.allclose(turn(x, 1).numpy(), x.numpy(), atol=0.1)
    assert Rotation()(x, 1) is x


def test_words():
    assert [str(parse_rotation(word)) for word in ("none", "hadamard", "hadamard(64)")] == [
        "none",
        "hadamard",
        "hadamard(64)",
    ]
    for word in ("hadamard(5)", "hadamard(128)", "hadamrd", "none(2)"):
        with pytest.raises(LowbitError):
            parse_rotation(word)


def test_a_block_that_does_not_divide():
    with pytest.raises(LowbitError, match="cannot be turned"):
        hadamard_transform(paddle.zeros([6]), 0, 4)


def test_a_kernel_turns_what_no_gradient_is_wanted_of(monkeypatch):
    x = paddle.randn([2, 8, 3])
    expected = butterflies(x, 1, 8).numpy()
    monkeypatch.setattr(hadamard, "butterflies", lambda *a: None)
    if kernels() is not None:
        np.testing.assert_array_equal(hadamard_transform(x, 1, 8).numpy(), expected)
        assert hadamard_transform(paddle.randn([256]), 0, 128) is None  # a larger block than it knows
    x.stop_gradient = False
    assert hadamard_transform(x, 1, 8) is None
