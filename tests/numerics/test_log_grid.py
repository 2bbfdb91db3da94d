from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.numerics import Stochastic
from lowbit.numerics.counter_random import random_integers
from lowbit.numerics.log_grid import log_round
from tests.numerics.twin import F32

values = st.lists(st.floats(-64, 64, width=32), min_size=1, max_size=50)


def _around(value: float) -> tuple[Fraction, Fraction]:
    """The levels below and above a magnitude."""
    levels = [Fraction(0), *(Fraction(2) ** k for k in range(8))]
    return next(pair for pair in pairwise(levels) if pair[0] <= abs(value) < pair[1])


@given(x=values)
@settings(max_examples=100)
def test_the_nearest_and_from_halfway_the_lower(x):
    found = log_round(paddle.to_tensor(F32(x))).tolist()
    for value, rounded in zip(x, found, strict=True):
        below, above = _around(value)
        expected = above if Fraction(abs(value)) - below > above - Fraction(abs(value)) else below
        assert rounded == (float(expected) if value > 0 else -float(expected))


@given(x=values)
@settings(max_examples=100)
def test_stochastic_equals_fractions(x):
    found = log_round(paddle.to_tensor(F32(x)), Stochastic(seed=5, step=6, layer=7)).tolist()
    k = random_integers(len(x), seed=5, step=6, layer=7)
    for value, rounded, n in zip(x, found, k, strict=True):
        below, above = _around(value)
        up = (Fraction(abs(value)) - below) / (above - below) + Fraction(int(n), 2**24) >= 1
        assert abs(rounded) == float(above if up else below) and rounded * value >= 0


@pytest.mark.parametrize("value", [0.01, 0.7, -1.3, 5.0, -63.0])
def test_the_mean_is_kept(value):
    """With a standard deviation of step * sqrt(f (1 - f) / n)."""
    n = 1 << 18
    mean = log_round(paddle.full([n], value), Stochastic(seed=1, step=2, layer=3)).numpy().mean(dtype="f8")
    below, above = (float(level) for level in _around(value))
    fraction = (abs(value) - below) / (above - below)
    assert abs(mean - value) < 5 * (above - below) * np.sqrt(fraction * (1 - fraction) / n)


def test_levels_stay_and_nan_shows():
    x = F32([0, 1, -2, 4, -8, 16, -32, 64])
    for rounding in ({}, {"rounding": Stochastic(seed=0, step=0, layer=0)}):
        assert log_round(paddle.to_tensor(x), **rounding).numpy().tolist() == x.tolist()
        assert np.isnan(log_round(paddle.to_tensor(F32([np.nan])), **rounding).item())
