from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lowbit.data import topk_hits


@given(
    st.integers(2, 8).flatmap(
        lambda classes: arrays.arrays(np.float32, (5, classes), elements=st.integers(-3, 3).map(np.float32))
    ),
    st.integers(0, 2**32),
)
def test_hits_equal_a_stable_ranking(logits, seed):
    """Few distinct values make many ties; a stable sort puts the lower index first."""
    labels = np.random.default_rng(seed).integers(0, logits.shape[1], len(logits))
    ranking = np.argsort(-logits, axis=1, kind="stable")
    expected = [sum(label in row[:k] for label, row in zip(labels, ranking, strict=True)) for k in (1, 3)]
    assert topk_hits(logits, labels, (1, 3)).tolist() == expected


def test_a_dead_network_is_right_by_chance_only():
    labels = np.arange(10)
    assert topk_hits(np.zeros((10, 10)), labels, (1, 5)).tolist() == [1, 5]


def test_nan_is_never_a_hit():
    assert topk_hits(np.full((4, 3), np.nan), np.array([0, 1, 2, 0]), (1, 3)).tolist() == [0, 0]
