from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from lowbit.config.transform_ops import AutoAugment
from lowbit.data.auto_augment import POLICIES, apply, auto_augment
from tests.support.pictures import picture

IMAGE = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)


def test_policies_are_complete():
    assert set(POLICIES) == {"imagenet", "cifar10", "svhn"}
    for policy in POLICIES.values():
        assert len(policy) == 25
        for pair in policy:
            for name, probability, magnitude in pair:
                assert 0 <= probability <= 1 and 0 <= magnitude <= 9
                assert apply(name, IMAGE, magnitude).shape == IMAGE.shape
    # From the paper's tables, one line each.
    assert POLICIES["imagenet"][0] == (("Posterize", 0.4, 8), ("Rotate", 0.6, 9))
    assert POLICIES["cifar10"][3] == (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9))
    assert POLICIES["svhn"][24] == (("ShearX", 0.7, 2), ("Invert", 0.1, 5))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_policy_depends_on_the_generator_alone(policy):
    step = auto_augment(AutoAugment(policy=policy))
    before = IMAGE.copy()
    results = [step(IMAGE, np.random.default_rng(seed)) for seed in range(60)]
    again = [step(IMAGE, np.random.default_rng(seed)) for seed in range(60)]
    assert all(np.array_equal(left, right) for left, right in zip(results, again, strict=True))
    assert np.array_equal(IMAGE, before)
    assert all(result.shape == IMAGE.shape and result.dtype == np.uint8 for result in results)
    assert len({result.tobytes() for result in results}) > 15


NOISE = np.random.default_rng(0).integers(30, 200, (40, 50, 3), dtype=np.uint8)
SMOOTH = picture(40, 50)


def pillow(function, image: np.ndarray, *args) -> np.ndarray:
    return np.asarray(function(Image.fromarray(image), *args)).astype(int)


@pytest.mark.parametrize("image", [NOISE, SMOOTH], ids=["noise", "smooth"])
@pytest.mark.parametrize(
    ("name", "magnitude", "reference"),
    [
        ("Equalize", 0, lambda image: pillow(ImageOps.equalize, image)),
        ("AutoContrast", 0, lambda image: pillow(ImageOps.autocontrast, image)),
        ("Invert", 0, lambda image: pillow(ImageOps.invert, image)),
        ("Solarize", 9, lambda image: pillow(ImageOps.solarize, image, 0)),
        ("Solarize", 0, lambda image: image.astype(int)),
        ("Posterize", 9, lambda image: pillow(ImageOps.posterize, image, 4)),
        ("Posterize", 0, lambda image: image.astype(int)),
        ("Brightness", 5, lambda image: pillow(lambda i: ImageEnhance.Brightness(i).enhance(1.5), image)),
        ("Contrast", 5, lambda image: pillow(lambda i: ImageEnhance.Contrast(i).enhance(1.5), image)),
        ("Color", 5, lambda image: pillow(lambda i: ImageEnhance.Color(i).enhance(1.5), image)),
        ("Sharpness", 5, lambda image: pillow(lambda i: ImageEnhance.Sharpness(i).enhance(1.5), image)),
    ],
)
def test_colours_change_as_with_pillow(name, magnitude, reference, image):
    difference = abs(apply(name, image, magnitude).astype(int) - reference(image))
    assert difference.max() <= 2


@pytest.mark.parametrize("name", ["Brightness", "Contrast", "Color", "Sharpness"])
def test_signs_go_both_ways(name):
    less, more = apply(name, NOISE, 9, -1), apply(name, NOISE, 9, 1)
    assert less.std() < NOISE.std() < more.std()
    assert np.array_equal(apply(name, NOISE, 0), NOISE)


@pytest.mark.parametrize("name", ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"])
@pytest.mark.parametrize("sign", [1, -1])
def test_geometry_moves_pixels_and_uncovers_grey(name, sign):
    assert np.array_equal(apply(name, NOISE, 0, sign), NOISE)
    moved = apply(name, NOISE, 9, sign)
    assert not np.array_equal(moved, NOISE)
    assert not np.array_equal(moved, apply(name, NOISE, 9, -sign))
    assert (moved == 128).all(axis=2).sum() > 50


def test_translation_by_the_papers_share():
    moved = apply("TranslateX", NOISE, 9, 1)
    shift = round(50 * 150 / 331)
    assert np.array_equal(moved[:, : 50 - shift], NOISE[:, shift:])
    moved = apply("TranslateY", NOISE, 9, -1)
    shift = round(40 * 150 / 331)
    assert np.array_equal(moved[shift:], NOISE[: 40 - shift])


def test_rotation_keeps_the_middle():
    marked = np.zeros((41, 41, 3), np.uint8)
    marked[20, 20] = 255
    assert apply("Rotate", marked, 9, 1)[20, 20].tolist() == [255] * 3


def test_a_flat_image_survives():
    flat = np.full((8, 8, 3), 90, np.uint8)
    for name in ("Equalize", "AutoContrast"):
        assert np.array_equal(apply(name, flat, 5), flat)
