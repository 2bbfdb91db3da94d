from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.data.dataset import ArrayDataset, BadImageError, SpreadDataset
from lowbit.errors import LowbitError


def test_grey_arrays_become_rgb():
    dataset = ArrayDataset(np.arange(8, dtype=np.uint8).reshape(2, 2, 2), np.array([0, 1]), ["a", "b"], "toy")
    assert len(dataset) == 2 and dataset.label(1) == 1 and dataset.name(1) == "toy #1"
    assert dataset.image(1).tolist() == [[[4] * 3, [5] * 3], [[6] * 3, [7] * 3]]


def test_wrong_labels_are_named():
    images = np.zeros((3, 2, 2, 3), np.uint8)
    with pytest.raises(LowbitError, match=r"toy: image #2 has label 5, outside 0\.\.1"):
        ArrayDataset(images, np.array([0, 1, 5]), ["a", "b"], "toy")
    with pytest.raises(LowbitError, match="toy: 3 images but 2 labels"):
        ArrayDataset(images, np.array([0, 1]), ["a", "b"], "toy")
    with pytest.raises(LowbitError, match="holds no images"):
        ArrayDataset(images[:0], np.array([], int), ["a", "b"], "toy")


def test_one_class_is_a_warning():
    with pytest.warns(UserWarning, match="toy: all images have one class"):
        ArrayDataset(np.zeros((2, 2, 2, 3), np.uint8), np.array([1, 1]), ["a", "b"], "toy")


def test_a_bad_image_is_a_user_facing_error():
    error = BadImageError("cat.jpg", "the file is empty")
    assert isinstance(error, LowbitError) and error.name == "cat.jpg" and error.reason == "the file is empty"
    assert str(error).startswith("cat.jpg: the file is empty")


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
