from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from hypothesis import given, settings

from lowbit.numerics import lsq_fake_quantize, lsq_initial_step, parse_grid, parse_observer
from tests.support import numerics_twin as twin
from tests.support.numerics_twin import F32, INTEGER_GRIDS, TINY, every_bit_pattern, grids, scales

X = np.random.default_rng(0).standard_normal((4, 3, 5), dtype=F32) * 3
DY = np.random.default_rng(1).standard_normal((4, 3, 5), dtype=F32)


@given(x=every_bit_pattern, step=scales, grid=grids)
@settings(max_examples=100)
def test_equals_the_twin_to_the_last_bit(x, step, grid):
    expected = twin.fake_quantize(x, F32([step]), grid)
    for learns in (False, True):
        tensor = paddle.to_tensor(x, stop_gradient=not learns)
        found = lsq_fake_quantize(tensor, paddle.to_tensor(F32([step])), grid).numpy()
        assert np.array_equal(found, expected, equal_nan=True)


def gradients(grid, step, **options):
    x = paddle.to_tensor(X, stop_gradient=False)
    step = paddle.to_tensor(step, stop_gradient=False)
    lsq_fake_quantize(x, step, grid, **options).backward(paddle.to_tensor(DY))
    return x.grad.numpy(), step.grad.numpy()


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (1, 3, 1), (4, 1, 1)])
def test_gradients_are_the_paper_s(grid, shape):
    step = np.full(shape, 0.37, F32)
    dx, dstep = gradients(grid, step)
    v = X.astype(np.float64) / 0.37
    inside = (-grid.lowest > -v) & (v < grid.highest)
    slope = np.where(inside, np.rint(v) - v, np.clip(v, grid.lowest, grid.highest)) * DY
    shared = X.size // max(1, step.size)
    slope = slope / math.sqrt(shared * grid.highest)
    axes = tuple(axis for axis in range(3) if ([1] * (3 - len(shape)) + list(shape))[axis] == 1)
    assert np.array_equal(dx, np.where(inside, DY, 0))
    np.testing.assert_allclose(dstep, slope.sum(axis=axes).reshape(shape), rtol=1e-4, atol=1e-5)


def test_elements_may_be_given():
    grid = parse_grid("int4")
    counted, given_ = (gradients(grid, F32([0.3]), **o)[1] for o in ({}, {"elements": X.size * 4}))
    np.testing.assert_allclose(given_, counted / 2, rtol=1e-6)


def test_either_may_be_frozen():
    grid = parse_grid("int4")
    for x_learns, step_learns in ((True, False), (False, True)):
        x = paddle.to_tensor(X, stop_gradient=not x_learns)
        step = paddle.to_tensor([0.3], stop_gradient=not step_learns)
        lsq_fake_quantize(x, step, grid).sum().backward()
        assert (x.grad is not None, step.grad is not None) == (x_learns, step_learns)


def test_odd_values():
    grid = parse_grid("int4")
    x = paddle.to_tensor(F32([np.inf, -np.inf, 0, 1e-45]), stop_gradient=False)
    step = paddle.to_tensor([0.5], stop_gradient=False)
    y = lsq_fake_quantize(x, step, grid)
    assert y.tolist() == [3.5, -4, 0, 0]
    y.sum().backward()
    assert x.grad.tolist() == [0, 0, 1, 1]
    assert step.grad.item() == pytest.approx((7 - 8) / math.sqrt(4 * 7))
    # A step that learning took to 0 or below counts as the smallest, and can still come back.
    for value in (0.0, -3.0):
        step = paddle.to_tensor([value], stop_gradient=False)
        y = lsq_fake_quantize(paddle.to_tensor([1.0, 2.0]), step, grid)
        assert y.tolist() == [7 * float(TINY)] * 2
        y.sum().backward()
        assert step.grad.item() > 0
    assert np.isnan(lsq_fake_quantize(x, paddle.to_tensor([float("nan")]), grid).numpy()).all()


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
def test_initial_step(grid):
    x = X.copy()
    x[:, 0] = 0
    expected = 2 * np.abs(x.astype(np.float64)).mean(axis=(0, 2), keepdims=True) / math.sqrt(grid.highest)
    found = lsq_initial_step(paddle.to_tensor(x), grid, (0, 2)).numpy()
    assert found.shape == (1, 3, 1) and found.dtype == F32
    np.testing.assert_allclose(found[:, 1:], expected[:, 1:], rtol=1e-6)
    assert found[0, 0, 0] == 1
    whole = lsq_initial_step(paddle.to_tensor(x), grid, (0, 1, 2))
    assert whole.item() == pytest.approx(2 * np.abs(x).mean() / math.sqrt(grid.highest), rel=1e-5)


def test_initial_step_of_odd_values():
    grid = parse_grid("int2")
    rows = F32([[1, np.nan], [np.inf, 1], [3.4e38, -3.4e38], [1e-45, 0]])
    found = lsq_initial_step(paddle.to_tensor(rows), grid, (1,)).numpy().ravel()
    assert np.isnan(found[:2]).all() and np.isfinite(found[2] * F32(2)) and found[3] == TINY
    assert lsq_initial_step(paddle.ones([0, 2]), grid, (0,)).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("word", ["int2", "int3", "uint4"])
def test_the_step_learns_to_make_the_error_small(word):
    grid = parse_grid(word)
    x = np.random.default_rng(2).standard_normal(3000).astype(F32)
    x = paddle.to_tensor(x if grid.signed else np.abs(x))
    start = lsq_initial_step(x, grid, (0,)).numpy() * F32(3)

    def error(step: np.ndarray) -> float:
        return float(((lsq_fake_quantize(x, paddle.to_tensor(step), grid) - x) ** 2).mean())

    value = start
    for _ in range(300):
        step = paddle.to_tensor(value, stop_gradient=False)
        ((lsq_fake_quantize(x, step, grid, elements=1) - x) ** 2).mean().backward()
        value = value - F32(0.5) * step.grad.numpy()
    best = min(error(F32([s])) for s in np.linspace(0.05, 2.5, 200))
    assert error(value) < 1.5 * best < error(start)


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("shape", [(1,), (4, 1, 1)])
def test_midrise_goes_to_the_nearest_odd_integer(bits, shape):
    grid, step = parse_grid(f"int{bits}-midrise"), np.full(shape, 0.37, F32)
    odd = np.arange(grid.lowest, grid.highest + 1, 2)
    v = X / F32(0.37)
    nearest = odd[np.abs(v[..., None] - odd).argmin(-1)]
    found = lsq_fake_quantize(paddle.to_tensor(X), paddle.to_tensor(step), grid).numpy()
    assert np.array_equal(found, nearest.astype(F32) * F32(0.37))
    dx, dstep = gradients(grid, step)
    inside = (v > grid.lowest) & (v < grid.highest)
    slope = np.where(inside, nearest - v, nearest) * DY / math.sqrt(X.size // step.size * grid.highest)
    assert np.array_equal(dx, np.where(inside, DY, 0))
    axes = (0, 1, 2) if shape == (1,) else (1, 2)
    np.testing.assert_allclose(dstep, slope.sum(axis=axes).reshape(shape), rtol=1e-4, atol=1e-5)


def test_midrise_is_on_the_grid_already_and_knows_no_zero():
    grid, step = parse_grid("int2-midrise"), paddle.to_tensor([0.5])
    values = lsq_fake_quantize(paddle.to_tensor([-9.0, -0.1, 0.0, 0.1, 1.0, 9.0, np.nan]), step, grid)
    assert np.array_equal(values.numpy(), F32([-1.5, -0.5, 0.5, 0.5, 1.5, 1.5, np.nan]), equal_nan=True)
    assert np.array_equal(lsq_fake_quantize(values, step, grid).numpy(), values.numpy(), equal_nan=True)


def test_midrise_is_closer_to_normal_weights_in_two_bits():
    values = np.random.default_rng(0).standard_normal((1, 5000), dtype=F32)
    x, mse = paddle.to_tensor(values), parse_observer("mse(50)")
    errors = []
    for word in ("int2", "int2-midrise"):
        grid = parse_grid(word)
        y = lsq_fake_quantize(x, mse(x, grid, axes=(1,)), grid)
        errors.append(float(((y - x) ** 2).mean()))
    assert errors[1] < 0.9 * errors[0]
