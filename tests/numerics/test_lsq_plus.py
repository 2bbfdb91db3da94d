"""LSQ+: a learned step and offset."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.numerics import asymmetric_grid, lsq_fake_quantize, lsq_plus_fake_quantize, parse_grid
from lowbit.numerics.lsq_plus import lsq_plus_initial, zero_point_of


def _values(seed=0, shape=(2, 3, 5, 5)) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * 2
    return x * np.clip(x + 3, 0, 6) / 6  # hard-swish


def _learned(value: float) -> paddle.Tensor:
    return paddle.to_tensor([value], stop_gradient=False)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_grid_with_a_zero_point(bits, zero):
    grid = asymmetric_grid(bits, zero)
    assert (grid.lowest, grid.highest) == (-zero, 2**bits - 1 - zero)
    if not zero:
        assert (grid.lowest, grid.highest, grid.signed) == (0, parse_grid(f"uint{bits}").highest, False)
    with pytest.raises(ValueError, match="zero point"):
        asymmetric_grid(bits, 2**bits)


@settings(max_examples=60, deadline=None)
@given(st.floats(1 / 64, 2, width=32), st.floats(-4, 1, width=32), st.integers(2, 8), st.integers(0, 9))
def test_values_are_those_of_quantize_linear_with_a_zero_point(step, offset, bits, seed):
    x = _values(seed)
    zero = zero_point_of(_learned(step), _learned(offset), bits)
    y = lsq_plus_fake_quantize(paddle.to_tensor(x), _learned(step), _learned(offset), bits).numpy()
    stored = np.clip(np.round(x / np.float32(step)) + zero, 0, 2**bits - 1)  # what ONNX stores
    np.testing.assert_array_equal(y, (stored - zero).astype(np.float32) * np.float32(step))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("offset", [-0.7, 0.0, 0.4, -99.0])
def test_gradients_are_the_paper_s(fused, offset):
    x = _values(1)
    step, bits = 0.25, 4
    dy = np.random.default_rng(5).standard_normal(x.shape, dtype=np.float32)
    s, b = _learned(step), _learned(offset)
    t = paddle.to_tensor(x, stop_gradient=False)
    given = t if fused else t.transpose([0, 2, 1, 3])  # other strides: plain operators
    gradient = paddle.to_tensor(dy if fused else dy.transpose(0, 2, 1, 3).copy())
    lsq_plus_fake_quantize(given, s, b, bits).backward(gradient)
    zero = zero_point_of(s, b, bits)
    v = x.astype(np.float64) / step
    inside = (v > -zero) & (v < 15 - zero)
    q = np.clip(np.round(v), -zero, 15 - zero)
    scale = 1 / np.sqrt(x.size * 15)
    np.testing.assert_allclose(t.grad.numpy(), np.where(inside, dy, 0))
    expected = (dy * np.where(inside, q - v, q + zero)).sum() * scale
    np.testing.assert_allclose(float(s.grad), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(float(b.grad), (dy * ~inside).sum() * scale, rtol=1e-4, atol=1e-6)


def test_without_an_offset_it_is_lsq_on_the_unsigned_grid():
    x = paddle.to_tensor(np.abs(_values(2)))
    found = []
    for make in (
        lambda s: lsq_plus_fake_quantize(x, s, paddle.zeros([1]), 4),
        lambda s: lsq_fake_quantize(x, s, parse_grid("uint4")),
    ):
        s = _learned(0.1)
        y = make(s)
        (y**2).sum().backward()
        found.append((y.numpy(), float(s.grad)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)


def test_either_may_be_frozen():
    x = paddle.to_tensor(_values(), stop_gradient=False)
    step, offset = paddle.to_tensor([0.25]), _learned(-0.5)
    lsq_plus_fake_quantize(x, step, offset, 4).sum().backward()
    assert step.grad is None and offset.grad is not None and x.grad is not None
    lsq_plus_fake_quantize(x.detach(), _learned(0.25), paddle.to_tensor([-0.5]), 4).sum().backward()


def test_step_and_offset_learn_to_make_the_error_small():
    x = paddle.to_tensor(_values(3, (64, 64)))
    step, offset = _learned(1.0), _learned(0.0)
    optimizer = paddle.optimizer.Adam(0.01, parameters=[step, offset])
    errors = []
    for _ in range(150):
        loss = ((lsq_plus_fake_quantize(x, step, offset, 4) - x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        errors.append(float(loss))
    assert errors[-1] < errors[0] / 3
    assert zero_point_of(step, offset, 4) >= 1  # what is below 0 is kept


def test_where_it_starts():
    x = paddle.to_tensor(_values(4, (64, 64)))
    step, offset = lsq_plus_initial(x, 4)
    error = float(((lsq_plus_fake_quantize(x, step, offset, 4) - x) ** 2).mean())
    best_unsigned = min(
        float(((lsq_fake_quantize(x, paddle.to_tensor([s]), parse_grid(word)) - x) ** 2).mean())
        for word in ("uint4", "int4")
        for s in np.linspace(0.05, 1.5, 60, dtype=np.float32)
    )
    assert error < best_unsigned
    assert [float(part) for part in lsq_plus_initial(paddle.zeros([3]), 4)] == [1.0, 0.0]
    assert np.isnan(float(lsq_plus_initial(paddle.to_tensor([1.0, float("nan")]), 4)[0]))
