from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lowbit.deploy.verify.layer_differences import Steps


@given(
    seed=st.integers(0, 2**32 - 1), size=st.integers(1, 40), near=st.integers(0, 3), parts=st.integers(1, 5)
)
def test_equal_to_a_plain_count_however_it_comes_in_batches(seed, size, near, parts):
    rng = np.random.default_rng(seed)
    values = rng.integers(-128, 256, size)
    pairs = np.stack([values, values + rng.integers(-near, near + 1, size)], axis=1)
    steps = Steps()
    for part in np.array_split(pairs, parts):
        steps.add(part[:, 0], part[:, 1])
    apart = [abs(int(a) - int(b)) for a, b in pairs]
    assert steps.count == len(apart)
    assert steps.unequal == sum(d > 0 for d in apart)
    assert steps.far == sum(d > 1 for d in apart) / len(apart)
    assert steps.largest == max(apart)
    signal, noise = sum(int(a) ** 2 for a, _ in pairs), sum(d * d for d in apart)
    if noise and signal:
        assert math.isclose(steps.sqnr, 10 * math.log10(signal / noise))
    else:
        assert steps.sqnr == (-math.inf if noise else math.inf)


def test_what_is_not_a_number_is_far_from_everything():
    steps = Steps()
    steps.add(np.array([1.0, 2.0]), np.array([1.0, np.nan]))
    assert (steps.unequal, steps.largest, steps.sqnr) == (1, math.inf, -math.inf)


def test_nothing_counted_yet():
    assert (Steps().differing, Steps().far, Steps().sqnr) == (0, 0, math.inf)
