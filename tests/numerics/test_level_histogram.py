"""Histograms of values on their grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit.numerics import parse_grid
from lowbit.numerics.level_histogram import level_histogram, value_histogram

VALUES = arrays(np.float32, st.integers(0, 50), elements=st.floats(-300, 300, width=32))


@given(values=VALUES, bits=st.integers(2, 8))
def test_every_value_is_counted_once_in_bins_and_in_levels(values, bits):
    grid = parse_grid(f"int{bits}")
    found = level_histogram(values, grid.lowest, grid.highest)
    assert sum(found.counts) == sum(found.levels) == len(values)
    assert len(found.levels) == 2**bits
    # The slow twin: one value at a time.
    levels = [0] * 2**bits
    clipped = 0
    for value in values.tolist():
        levels[min(max(round(value), grid.lowest), grid.highest) - grid.lowest] += 1
        clipped += value < grid.lowest - 0.5 or value > grid.highest + 0.5
    assert found.levels == levels
    assert found.dead_levels == levels.count(0)
    assert found.clipped == pytest.approx(clipped / max(len(values), 1))


def test_bins_reach_to_the_grid_and_not_far_beyond():
    found = level_histogram(np.array([0.1, 1000.0]), -8, 7)
    assert found.start == -8.5
    assert found.start + found.width * len(found.counts) == pytest.approx(7 + 7.5)
    assert found.counts[-1] == 1  # what is farther away is in the last bin


def test_values_on_no_grid_and_values_that_are_none():
    found = value_histogram(np.array([2.0, 2.0, np.nan, np.inf]))
    assert sum(found.counts) == 2
    assert found.dead_levels is None
    assert sum(value_histogram(np.array([])).counts) == 0


def test_plain_values_say_how_many_levels_are_dead_and_not_which():
    values = level_histogram(np.array([0.0, 1.0 / 3, 5.0]), -2, 1).values()
    assert (values["lowest"], values["highest"], values["dead"], values["clipped"]) == (-2, 1, 2, 0.33333)
    assert "levels" not in values and sum(values["counts"]) == 3
    assert set(value_histogram(np.array([1.0])).values()) == {"start", "width", "counts"}
