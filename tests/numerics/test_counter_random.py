from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.numerics.counter_random import RANDOM_BITS, random_integers
from tests.numerics import twin

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
