from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.config.transform_ops import Cutout, GridMask, HideAndSeek, RandomErasing
from lowbit.data.erasing import ERASERS, random_erasing
from lowbit.errors import LowbitError


def erased(op: RandomErasing, seed: int, height: int = 40, width: int = 60) -> np.ndarray:
    image = np.full((3, height, width), 7, np.float32)
    random_erasing(op)(image, np.random.default_rng(seed))
    return image != 7


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(["const", "pixel"]))
def test_one_rectangle_within_the_limits(seed, log, mode):
    gone = erased(RandomErasing(EPSILON=1, use_log_aspect=log, mode=mode, attempt=100), seed)
    rows, columns = np.flatnonzero(gone[0].any(axis=1)), np.flatnonzero(gone[0].any(axis=0))
    assert gone[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
    height, width = len(rows), len(columns)
    assert gone.sum() == 3 * height * width
    assert 0.015 < height * width / (40 * 60) < 0.43
    assert 0.25 < height / width < 4


def test_the_probability_holds():
    hits = sum(erased(RandomErasing(EPSILON=0.25), seed).any() for seed in range(1000))
    assert 190 < hits < 310
    assert not any(erased(RandomErasing(EPSILON=0), seed).any() for seed in range(50))


def test_modes_write_zeros_or_noise():
    image = np.full((3, 40, 60), 7, np.float32)
    random_erasing(RandomErasing(EPSILON=1))(image, np.random.default_rng(0))
    assert set(np.unique(image)) == {0, 7}
    random_erasing(RandomErasing(EPSILON=1, mode="pixel", sl=0.3))(image, np.random.default_rng(1))
    assert len(np.unique(image)) > 100


def test_areas_in_the_wrong_order_are_an_error():
    with pytest.raises(LowbitError, match=r"sl \(0\.5\) is above the largest, sh \(0\.4\)"):
        random_erasing(RandomErasing(sl=0.5))


@pytest.mark.parametrize("op", [Cutout(length=8), Cutout(n_holes=3, length=5), HideAndSeek()])
@pytest.mark.parametrize("seed", range(5))
def test_holes_are_zeros_in_all_channels(op, seed):
    image = np.full((3, 60, 80), 7, np.float32)
    ERASERS[type(op)](op)(image, np.random.default_rng(seed))
    assert set(np.unique(image)) <= {0, 7}
    assert (image == image[:1]).all()


def test_a_hole_within_the_image_has_its_size():
    sizes = []
    for seed in range(50):
        image = np.ones((3, 60, 80), np.float32)
        ERASERS[Cutout](Cutout(length=9))(image, np.random.default_rng(seed))
        sizes.append(int((image[0] == 0).sum()))
    assert max(sizes) == 81 and min(sizes) >= 16


@pytest.mark.parametrize("mode", [0, 1])
def test_a_grid_hides_its_part(mode):
    parts = []
    for seed in range(40):
        image = np.ones((3, 96, 96), np.float32)
        op = GridMask(d1=20, d2=30, ratio=0.5, mode=mode, rotate=1)
        ERASERS[GridMask](op)(image, np.random.default_rng(seed))
        assert set(np.unique(image)) <= {0, 1}
        parts.append((image == 0).mean())
    # Rows and columns of half the period are hidden: three quarters, or with mode 1 the rest.
    assert np.mean(parts) == pytest.approx(0.25 if mode else 0.75, abs=0.05)


def test_a_turned_grid_covers_the_image_and_a_probability_of_zero_hides_nothing():
    image = np.ones((3, 50, 90), np.float32)
    ERASERS[GridMask](GridMask(d1=20, d2=30, rotate=360))(image, np.random.default_rng(2))
    assert 0 < image.mean() < 1
    image[:] = 1
    ERASERS[GridMask](GridMask(prob=0))(image, np.random.default_rng(2))
    assert (image == 1).all()


def test_one_random_colour():
    image = np.full((3, 40, 60), 7, np.float32)
    random_erasing(RandomErasing(EPSILON=1, mode="rand"))(image, np.random.default_rng(0))
    assert all(len(np.unique(channel)) == 2 for channel in image)
