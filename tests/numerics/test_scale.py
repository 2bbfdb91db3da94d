from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings

from lowbit.errors import LowbitError
from lowbit.numerics import BF16, scale_from_range
from lowbit.numerics.scale import SMALLEST_SCALE, at_least_smallest, largest_scale
from tests.numerics import twin
from tests.numerics.twin import F32, HUGE, INTEGER_GRIDS, TINY, assert_same_bits, every_bit_pattern, grids


@given(range_=every_bit_pattern.map(np.abs), grid=grids)
@settings(max_examples=200)
def test_equals_the_twin_to_the_last_bit(range_, grid):
    assert_same_bits(
        scale_from_range(paddle.to_tensor(range_), grid).numpy(), twin.scale_from_range(range_, grid)
    )


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
def test_the_ends(grid):
    range_ = F32([0, np.nan, np.inf, 1e-45, 1e-40, TINY, 1, HUGE])
    scale = scale_from_range(paddle.to_tensor(range_), grid).numpy()
    assert_same_bits(scale, twin.scale_from_range(range_, grid))
    assert scale[0] == 1 and np.isnan(scale[1:3]).all() and (scale[3:] >= TINY).all()
    for q in (grid.lowest, grid.highest):
        assert np.isfinite(F32(q) * scale[-1])


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
def test_the_largest_scale_is_the_largest(grid):
    steps = max(-grid.lowest, grid.highest)
    assert largest_scale(grid) * steps <= float(HUGE)
    with np.errstate(over="ignore"):
        above = np.nextafter(F32(largest_scale(grid)), F32("inf"))
    assert float(above) * steps > float(HUGE)


def test_a_learned_scale_as_it_is_used():
    x = paddle.to_tensor(F32([-1, 0, 1e-40, 2, np.inf, np.nan]))
    expected = F32([SMALLEST_SCALE] * 3 + [2, np.inf, np.nan])
    assert_same_bits(at_least_smallest(x).numpy(), expected)


def test_a_float_grid_has_no_scale():
    with pytest.raises(LowbitError, match="bf16 is no integer grid"):
        scale_from_range(paddle.to_tensor([1.0]), BF16)
