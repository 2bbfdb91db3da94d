from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.data import ArrayDataset
from lowbit.data.dataset import SpreadDataset
from lowbit.errors import LowbitError


def numbered(length: int) -> ArrayDataset:
    """Image i is all i; the labels are sorted, as in class folders."""
    values = np.arange(length, dtype=np.uint8)
    labels = np.arange(length) * 5 // length
    return ArrayDataset(np.tile(values[:, None, None], (1, 2, 2)), labels, list("abcde"), "numbered")


@given(length=st.integers(5, 200), count=st.integers(1, 300))
def test_different_images_in_order_at_even_distances(length, count):
    whole = numbered(length)
    part = SpreadDataset(whole, count)
    chosen = [int(part.image(index)[0, 0, 0]) for index in range(len(part))]
    assert len(chosen) == min(count, length)
    gaps = np.diff(chosen)
    assert len(gaps) == 0 or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)
    assert [part.label(index) for index in range(len(part))] == [whole.label(index) for index in chosen]
    assert part.name(len(part) - 1) == f"numbered #{chosen[-1]}"


def test_every_class_of_sorted_labels_is_there():
    part = SpreadDataset(numbered(100), 5)
    assert [part.label(index) for index in range(5)] == [0, 1, 2, 3, 4]
    assert part.classes == list("abcde")


@pytest.mark.parametrize("count", [0, -3])
def test_no_images(count):
    with pytest.raises(LowbitError, match=f"at least 1 image is needed, got {count}"):
        SpreadDataset(numbered(5), count)
