from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings

from lowbit.errors import LowbitError
from lowbit.numerics import Stochastic, nearest, parse_rounding, rounding_names
from lowbit.numerics.counter_random import random_integers
from tests.numerics import twin
from tests.numerics.twin import F32, assert_same_bits, every_bit_pattern, ordinary


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
