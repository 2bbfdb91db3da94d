from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.accel.amp_autocast import rounding
from lowbit.numerics import BF16, fake_quantize, pact_clip, pact_initial_alpha, parse_grid, scale_from_range
from tests.support import numerics_twin as twin
from tests.support.numerics_twin import F32, INTEGER_GRIDS, TINY, assert_same_bits, every_bit_pattern

X = F32([-5, -2, -1.5, -0.0, 0, 1.5, 2, 3, np.inf, -np.inf])
DY = np.arange(1, 11, dtype=F32)


@given(x=every_bit_pattern, alpha=st.floats(-1, 2.0**100, width=32), signed=st.booleans())
@settings(max_examples=150)
def test_equals_the_twin_to_the_last_bit(x, alpha, signed):
    found = pact_clip(paddle.to_tensor(x), paddle.to_tensor(F32([alpha])), signed=signed).numpy()
    bound = max(F32(alpha), TINY)
    lower = -bound if signed else F32(0)
    expected = np.where(x > bound, bound, np.where(x < lower, lower, x))
    assert np.array_equal(found, expected, equal_nan=True)


def gradients(signed: bool, x_learns: bool = True, alpha_learns: bool = True):
    x = paddle.to_tensor(X, stop_gradient=not x_learns)
    alpha = paddle.to_tensor([2.0], stop_gradient=not alpha_learns)
    y = pact_clip(x, alpha, signed=signed)
    y.backward(paddle.to_tensor(DY))
    return x.grad, alpha.grad


def test_signed_gradients():
    dx, dalpha = gradients(signed=True)
    # Clipped: -5, 3, Inf, -Inf. The bounds themselves are not.
    assert dx.tolist() == [0, 2, 3, 4, 5, 6, 7, 0, 0, 0]
    assert dalpha.tolist() == [-1 + 8 + 9 - 10]


def test_unsigned_gradients():
    dx, dalpha = gradients(signed=False)
    assert dx.tolist() == [0, 0, 0, 4, 5, 6, 7, 0, 0, 0]
    assert dalpha.tolist() == [8 + 9]


def test_either_may_be_frozen():
    dx, dalpha = gradients(True, x_learns=False)
    assert dx is None and dalpha.tolist() == [6]
    dx, dalpha = gradients(True, alpha_learns=False)
    assert dalpha is None and dx.tolist() == [0, 2, 3, 4, 5, 6, 7, 0, 0, 0]


def test_gradients_are_those_of_the_three_relus():
    x = np.random.default_rng(0).standard_normal((4, 3, 5), dtype=F32)
    for shape in ([1], [1, 3, 1], []):
        found, expected = [], []
        for clip, kept in ((pact_clip, found), (_three_relus, expected)):
            tensor = paddle.to_tensor(x, stop_gradient=False)
            alpha = paddle.full(shape, 0.7)
            alpha.stop_gradient = False
            (clip(tensor, alpha) ** 2).sum().backward()
            kept += [tensor.grad.numpy(), alpha.grad.numpy()]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def _three_relus(x, alpha):
    relu = paddle.nn.functional.relu
    return x - relu(x - alpha) + relu(-alpha - x)


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
def test_clipped_values_reach_the_grid_s_end(grid):
    alpha = paddle.to_tensor([0.7])
    y = pact_clip(paddle.to_tensor([9.0]), alpha, signed=grid.signed)
    scale = scale_from_range(alpha, grid)
    assert fake_quantize(y, scale, grid).item() == (scale * grid.highest).item()


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
def test_initial_alpha(grid):
    x = np.random.default_rng(0).standard_normal((3, 2000)).astype(F32)
    x[0] = 0
    alpha = pact_initial_alpha(paddle.to_tensor(x), grid, (1,)).numpy()
    assert alpha[0] == 1
    assert_same_bits(alpha[1:], twin.mse_range(x[1:], grid, (1,), 50))
    x[1, 5] = np.nan
    assert np.isnan(pact_initial_alpha(paddle.to_tensor(x), grid, (1,)).numpy()).tolist() == [
        [False],
        [True],
        [False],
    ]


def test_it_learns_a_bound():
    """Gradient descent on the quantization error moves a bound that is far too wide towards the best one."""
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal(4000).astype(F32))
    grid = parse_grid("int4-narrow")
    alpha = paddle.to_tensor([3.0], stop_gradient=False)
    target = 1.0 * paddle.clip(x, -1.2, 1.2)
    for _ in range(60):
        loss = ((pact_clip(x, alpha) - target) ** 2).mean()
        loss.backward()
        alpha = paddle.to_tensor(alpha.numpy() - 1.0 * alpha.grad.numpy(), stop_gradient=False)
    assert alpha.item() == pytest.approx(1.2, abs=0.1)
    assert scale_from_range(alpha, grid).item() == pytest.approx(alpha.item() / 7)


def test_types_shapes_and_mixed_precision():
    x = paddle.to_tensor([-3.0, 0.5])
    for dtype in ("float16", "bfloat16"):
        narrow = x.cast(dtype)
        assert pact_clip(narrow, paddle.to_tensor([1.0])).dtype == narrow.dtype
    assert list(pact_clip(paddle.ones([0, 2]), paddle.to_tensor([1.0])).shape) == [0, 2]
    with rounding(BF16, "O2"):
        assert pact_clip(x, paddle.to_tensor([1.001])).tolist() == [F32(-1.001), 0.5]
