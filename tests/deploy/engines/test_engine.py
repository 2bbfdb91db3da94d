from __future__ import annotations

import numpy as np
import pytest

from lowbit.deploy.engines.engine import check_batch, format_shape
from lowbit.errors import LowbitError


def test_a_good_batch_comes_back_contiguous():
    strided = np.zeros((2, 16, 16, 3), np.float32).transpose(0, 3, 1, 2)
    checked = check_batch(strided, (3, 16, 16))
    assert checked.shape == (2, 3, 16, 16) and checked.flags.c_contiguous


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (np.zeros((1, 3, 4, 4), np.uint8), "float32 images, got uint8"),
        (np.zeros((1, 3, 4, 4), np.float64), "float32 images, got float64"),
        (np.zeros((3, 4, 4), np.float32), r"\[N, C, H, W\].*\[3, 4, 4\]"),
        (np.zeros((0, 3, 4, 4), np.float32), "N of at least 1"),
        (np.zeros((1, 4, 4, 3), np.float32), "3x4x4.*got 4x4x3.*transform_ops"),
    ],
)
def test_a_bad_batch_is_explained(batch, message):
    with pytest.raises(LowbitError, match=message):
        check_batch(batch, (3, 4, 4))


def test_without_a_known_shape_any_size_passes():
    assert check_batch(np.zeros((1, 1, 2, 9), np.float32), None).shape == (1, 1, 2, 9)


def test_format_shape():
    assert format_shape((3, 224, 224)) == "3x224x224"
