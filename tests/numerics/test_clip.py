from __future__ import annotations

import numpy as np
import paddle
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.numerics.clip import clip_to_bound, lower_bound, usable_bound
from tests.numerics.twin import F32, TINY, every_bit_pattern


@given(x=every_bit_pattern, alpha=st.floats(-1, 2.0**100, width=32), signed=st.booleans())
@settings(max_examples=100)
def test_values_end_at_the_bounds(x, alpha, signed):
    found = clip_to_bound(paddle.to_tensor(x), paddle.to_tensor(F32([alpha])), signed=signed).numpy()
    bound = max(F32(alpha), TINY)
    lower = -bound if signed else F32(0)
    assert np.array_equal(found, np.where(x > bound, bound, np.where(x < lower, lower, x)), equal_nan=True)


def test_bounds_that_learning_took_below_zero():
    bound = usable_bound(paddle.to_tensor([-3.0, 0.0, 2.0]).cast("float64"))
    assert bound.dtype == paddle.float32 and bound.tolist() == [float(TINY), float(TINY), 2.0]
    assert lower_bound(bound, signed=True).tolist() == [-float(TINY), -float(TINY), -2.0]
    assert lower_bound(bound, signed=False).tolist() == [0.0, 0.0, 0.0]


def test_a_bound_that_is_nan_shows():
    assert np.isnan(
        clip_to_bound(paddle.ones([2]), paddle.to_tensor([float("nan")]), signed=True).numpy()
    ).all()
