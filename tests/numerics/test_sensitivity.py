from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.errors import LowbitError
from lowbit.numerics import parse_grid, parse_observer
from lowbit.numerics.sensitivity import BINS, Sensitivity


def seen(x: np.ndarray, gradient: np.ndarray) -> Sensitivity:
    found = Sensitivity()
    found.widen(float(np.abs(x).max()))
    found.add(x, gradient)
    return found


def slow_cost(x: np.ndarray, gradient: np.ndarray, range_: float, highest: int) -> float:
    """The definition, value by value, without a histogram."""
    total, step = 0.0, range_ / highest
    for value, slope in zip(np.abs(x), gradient, strict=True):
        total += (slope * (min(round(value / step), highest) * step - value)) ** 2
    return total


@settings(max_examples=25)
@given(seed=st.integers(0, 999), bits=st.sampled_from([3, 4, 8]), tail=st.sampled_from([1.0, 5.0, 50.0]))
def test_no_other_range_costs_much_less(seed, bits, tail):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(3000)
    x[:10] *= tail
    gradient = rng.standard_normal(3000) / (1 + np.abs(x))
    highest = 2 ** (bits - 1) - 1
    found = seen(x, gradient).range(highest=highest)
    others = [slow_cost(x, gradient, np.abs(x).max() * share, highest) for share in np.linspace(0.02, 1, 50)]
    # Values stand for the middles of their bins.
    assert (
        slow_cost(x, gradient, found, highest) <= 1.1 * min(others) + 1e-3 * np.square(gradient).sum() / BINS
    )


def test_what_has_no_influence_is_clipped():
    x, gradient = np.linspace(0, 1, 1000), np.ones(1000)
    x[-5:], gradient[-5:] = 100.0, 0.0
    assert seen(x, gradient).range(highest=255) < 1.5
    assert seen(x, np.ones(1000)).range(highest=255) > 50


def test_zeros_cost_nothing_and_without_gradients_the_largest_is_kept():
    x = np.array([0.0, 0.0, 2.0])
    assert seen(x, np.array([9.0, 9.0, 0.0])).range(highest=7) == 2.0
    assert seen(np.zeros(3), np.ones(3)).range(highest=7) == 0.0


@pytest.mark.parametrize("factor", [1.0, 3.0, 1000.0])
def test_a_wider_batch_later(factor):
    rng = np.random.default_rng(0)
    x, gradient = rng.random(1000), rng.random(1000)
    found = seen(x, gradient)
    found.widen(factor)
    found.add(x * factor, gradient)
    assert found.largest == max(factor, np.abs(x).max())
    assert found.counts.sum() == pytest.approx(2 * np.square(gradient).sum())
    step = found._top / BINS
    for limit in (0.3, 0.6, 0.8):  # the merged bins hold what lay in them
        bins = int(limit * BINS)
        both = np.concatenate([x, x * factor])
        weights = np.square(np.concatenate([gradient, gradient]))
        assert found.counts[:bins].sum() == pytest.approx(weights[both < bins * step].sum(), rel=1e-6)


def test_values_alone_are_not_enough():
    with pytest.raises(LowbitError, match="gradients, which calibration alone has"):
        parse_observer("sensitivity")(paddle.ones([4]), parse_grid("int8"), (0,))
