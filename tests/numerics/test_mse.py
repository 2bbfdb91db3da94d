from __future__ import annotations

from itertools import pairwise

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.numerics import parse_grid, parse_observer
from tests.numerics import twin
from tests.numerics.twin import F32, HUGE, INTEGER_GRIDS, assert_same_bits, every_bit_pattern, grids, ordinary


@given(x=ordinary, grid=grids, turns=st.sampled_from([1, 2, 50]))
@settings(max_examples=150)
def test_equals_the_twin_to_the_last_bit(x, grid, turns):
    found = parse_observer(f"mse({turns})").range(paddle.to_tensor(x), grid, (1,)).numpy()
    assert_same_bits(found, twin.mse_range(x, grid, (1,), turns))


@given(x=every_bit_pattern, grid=grids)
@settings(max_examples=100)
def test_equals_the_twin_for_any_bits(x, grid):
    found = parse_observer("mse").range(paddle.to_tensor(x[None]), grid, (1,)).numpy()
    expected = twin.mse_range(x[None], grid, (1,), 1)
    finite = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), finite)
    assert_same_bits(found[finite], expected[finite])


def test_the_order_of_the_values_does_not_matter():
    x = np.random.default_rng(0).standard_normal(100_000, dtype=F32)
    grid, observer = parse_grid("int4"), parse_observer("mse(50)")
    ranges = [observer.range(paddle.to_tensor(v), grid, (0,)).item() for v in (x, x[::-1].copy(), np.sort(x))]
    assert len(set(ranges)) == 1


def _error(x: np.ndarray, scale: float, grid) -> float:
    wide = x.astype(np.float64)
    return float(((np.clip(np.rint(wide / scale), grid.lowest, grid.highest) * scale - wide) ** 2).sum())


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
def test_each_turn_makes_the_error_smaller(grid):
    x = np.random.default_rng(1).standard_normal(5000).astype(F32)
    x = x if grid.signed else np.abs(x)
    words = ["minmax", "mse", "mse(3)", "mse(50)"]
    errors = [_error(x, parse_observer(w)(paddle.to_tensor(x), grid, (0,)).item(), grid) for w in words]
    assert all(b <= a * (1 + 1e-6) for a, b in pairwise(errors))
    assert errors[-1] < errors[0]


def test_close_to_the_formula():
    x = np.random.default_rng(2).standard_normal(1000).astype(F32)
    grid = parse_grid("uint8")
    start = np.abs(x).max() / 255
    q = np.clip(np.rint(x / start), 0, 255)
    found = parse_observer("mse")(paddle.to_tensor(x), grid, (0,)).item()
    assert found == pytest.approx(float(x @ q) / float(q @ q), rel=1e-5)


def test_a_large_tensor_does_not_overflow():
    grid = parse_grid("uint8")
    x = paddle.full([1 << 22], float(HUGE) / 2, "float32")
    assert parse_observer("mse").range(x, grid, (0,)).item() == pytest.approx(float(HUGE) / 2, rel=1e-6)
