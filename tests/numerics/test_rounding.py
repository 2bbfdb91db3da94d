"""Rounding: nearest, stochastic, to powers of two; the counter-based random generator."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.errors import LowbitError
from lowbit.numerics import Stochastic, nearest, parse_rounding, rounding_names
from lowbit.numerics.rounding import RANDOM_BITS, log_round, random_integers
from tests.support import numerics_twin as twin
from tests.support.numerics_twin import F32, assert_same_bits, every_bit_pattern, ordinary


@given(x=every_bit_pattern)
@settings(max_examples=100)
def test_nearest_is_half_to_even(x):
    assert_same_bits(nearest(paddle.to_tensor(x)).numpy(), np.rint(x))
    halves = np.trunc(np.clip(np.nan_to_num(x), -1e6, 1e6)) + F32(0.5)
    rounded = nearest(paddle.to_tensor(halves)).numpy()
    assert (rounded % 2 == 0).all() and (np.abs(rounded - halves) == 0.5).all()


@given(x=ordinary)
@settings(max_examples=100)
def test_stochastic_equals_the_twin(x):
    x = np.clip(x, -256, 256)
    found = Stochastic(seed=5, step=6, layer=7)(paddle.to_tensor(x)).numpy()
    k = random_integers(x.size, seed=5, step=6, layer=7)
    expected = [twin.stochastic(v, int(n)) for v, n in zip(x.ravel(), k, strict=True)]
    assert np.array_equal(found.ravel(), F32(expected))


def test_stochastic_at_the_edge_of_the_random_number():
    """The sum |x| + u just reaches the next integer, or just fails to: the comparison is exact."""
    k = random_integers(2000, seed=0, step=0, layer=0).astype(np.float64)
    for whole in (0, 1, 100):
        fraction = (2**24 - k) / 2**24
        x = F32(whole + fraction)
        for shifted in (x, np.nextafter(x, F32(0)), np.nextafter(x, F32(1e9))):
            found = Stochastic(seed=0, step=0, layer=0)(paddle.to_tensor(shifted)).numpy()
            assert np.array_equal(found, np.floor(shifted.astype(np.float64) + k / 2**24))


def test_stochastic_is_unbiased():
    """The mean of n roundings of x is x, with a standard deviation of sqrt(f (1 - f) / n)."""
    n = 1 << 16
    for value in (0.001, 0.25, 0.5, 0.73, -0.1, -1.999, 3.3, -126.4):
        x = paddle.full([n], value, "float32")
        mean = np.mean([Stochastic(seed=1, step=s, layer=2)(x).numpy().mean(dtype="f8") for s in range(8)])
        exact = float(F32(value))
        fraction = abs(exact) % 1
        assert abs(mean - exact) < 5 * np.sqrt(fraction * (1 - fraction) / (8 * n))


def test_stochastic_keeps_integers_and_odd_values():
    x = F32([0, -0.0, 3, -7, np.nan, np.inf, -np.inf, 2.0**30])
    for step in range(20):
        assert np.array_equal(
            Stochastic(seed=0, step=step, layer=0)(paddle.to_tensor(x)).numpy(), x, equal_nan=True
        )


def test_stochastic_depends_on_its_key_alone():
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((64, 33), dtype=F32) * 3)
    rounding = Stochastic(seed=1, step=2, layer=3)
    first = rounding(x).numpy()
    paddle.seed(99)
    assert np.array_equal(rounding(x).numpy(), first)
    assert np.array_equal(Stochastic(seed=1, step=2, layer=3, first=20 * 33)(x[20:]).numpy(), first[20:])
    for other in ({"seed": 2}, {"step": 3}, {"layer": 4}):
        changed = Stochastic(**({"seed": 1, "step": 2, "layer": 3} | other))(x).numpy()
        assert 0.2 < (changed != first).mean() < 0.5


def test_shapes():
    for shape in ([], [0, 3], [1], [2, 1, 3]):
        assert list(Stochastic(seed=0, step=0, layer=0)(paddle.ones(shape)).shape) == shape


def test_words():
    assert rounding_names() == ["nearest", "stochastic"]
    assert parse_rounding("stochastic") == "stochastic"
    with pytest.raises(LowbitError, match='unknown rounding "stocastic": did you mean "stochastic"'):
        parse_rounding("stocastic")
    with pytest.raises(LowbitError, match=r"rounding must be a word \(nearest, stochastic\), not True"):
        parse_rounding(True)


words = st.integers(0, 2**63 - 1)
N = 1 << 18


@given(seed=words, step=words, layer=words, first=st.integers(0, 2**40), count=st.integers(0, 40))
@settings(max_examples=100)
def test_equals_the_twin(seed, step, layer, first, count):
    found = random_integers(count, seed=seed, step=step, layer=layer, first=first)
    assert found.tolist() == [twin.random_bits(first + i, seed, step, layer) for i in range(count)]


def test_numbers_that_must_never_change():
    """A checkpoint resumed by another version, or by a kernel, goes on with the same numbers."""
    found = random_integers(4, seed=1, step=2, layer=3).tolist()
    assert found == [7505491, 5388030, 8345235, 4688907]


@given(cuts=st.lists(st.integers(0, 30000), max_size=4))
@settings(max_examples=30)
def test_parts_of_a_tensor_get_the_numbers_of_the_whole(cuts):
    whole = random_integers(30000, seed=7, step=0, layer=9)
    ends = [0, *sorted(cuts), 30000]
    parts = [random_integers(b - a, seed=7, step=0, layer=9, first=a) for a, b in pairwise(ends)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_across_the_end_of_a_block():
    first = 2**32 - 3
    found = random_integers(6, seed=1, step=1, layer=1, first=first).tolist()
    assert found == [twin.random_bits(first + i, 1, 1, 1) for i in range(6)]


def _bits(**words) -> np.ndarray:
    numbers = random_integers(N, **words)
    return ((numbers[:, None] >> np.arange(RANDOM_BITS, dtype=np.uint32)) & 1) * 2.0 - 1


def test_bits_are_fair_and_independent_of_neighbours_and_of_other_streams():
    """Every sum below has standard deviation 1 for true coins; 6 of them is one chance in 500 million."""
    streams = [_bits(seed=s, step=t, layer=y) for s, t, y in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]]
    for bits in streams:
        assert np.abs(bits.sum(axis=0)).max() / np.sqrt(N) < 6
        for lag in (1, 2, 64, 4096):
            assert np.abs(bits[lag:].T @ bits[:-lag]).max() / np.sqrt(N) < 6
    for i, a in enumerate(streams):
        for b in streams[:i]:
            assert np.abs(a.T @ b).max() / np.sqrt(N) < 6


def test_values_are_uniform():
    numbers = random_integers(N, seed=3, step=4, layer=5)
    assert numbers.max() < 2**RANDOM_BITS
    counts = np.bincount(numbers >> (RANDOM_BITS - 10), minlength=1024)
    # Chi-square with 1023 degrees of freedom: mean 1023, standard deviation 45.
    assert abs(((counts - N / 1024) ** 2).sum() / (N / 1024) - 1023) < 6 * 45


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"step": 2**63}, {"layer": -5}, {"first": -1}])
def test_mistakes(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be from 0 to 2\\^63-1"):
        random_integers(4, **({"seed": 0, "step": 0, "layer": 0} | wrong))


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
