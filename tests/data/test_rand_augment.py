from __future__ import annotations

import numpy as np
import pytest

from lowbit.config.transform_ops import (
    AugMix,
    ColorJitter,
    CropImageAtRatio,
    DecodeImage,
    PCALighting,
    RandAugment,
    RandAugmentV2,
    RandAugmentV3,
    RandCropImage,
    RandomGrayscale,
    TimmAutoAugment,
    parse_timm,
)
from lowbit.data import image_ops
from lowbit.data.rand_augment import augmix, rand_augment, timm_augment
from lowbit.data.transforms import compose

PHOTO = np.random.default_rng(0).integers(0, 255, (40, 60, 3)).astype(np.uint8)
POLICIES = [
    "rand-m9-mstd0.5-inc1",
    "rand-m15-mstd0.5-inc1",
    "rand-m7-n3-w0",
    "rand-m0-n1",
    "augmix-m5-w4-d2",
    "augmix-m3-a0.5",
]


@pytest.mark.parametrize("op", [RandAugment(), RandAugmentV2(), RandAugmentV3(), RandAugmentV2(magnitude=10)])
def test_rand_augment_depends_on_its_generator_alone(op):
    step = rand_augment(op)
    images = [step(PHOTO, np.random.default_rng(seed)) for seed in range(60)]
    assert all(image.shape == PHOTO.shape and image.dtype == np.uint8 for image in images)
    assert sum((image != PHOTO).any() for image in images) > 40
    for seed in (0, 17):
        np.testing.assert_array_equal(images[seed], step(PHOTO, np.random.default_rng(seed)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("interpolation", ["bicubic", "random"])
def test_timm(policy, interpolation):
    step = timm_augment(TimmAutoAugment(config_str=policy, interpolation=interpolation))
    before = PHOTO.copy()
    images = [step(PHOTO, np.random.default_rng(seed)) for seed in range(40)]
    np.testing.assert_array_equal(PHOTO, before)
    assert all(image.shape == PHOTO.shape and image.dtype == np.uint8 for image in images)
    assert any((image != PHOTO).any() for image in images)
    np.testing.assert_array_equal(images[7], step(PHOTO, np.random.default_rng(7)))


@pytest.mark.parametrize("options", [{}, {"mixture_depth": -1, "aug_severity": 10}, {"mixture_width": 1}])
def test_augmix(options):
    step = augmix(AugMix(prob=1.0, aug_prob_coeff=1.0, **options))
    images = [step(PHOTO, np.random.default_rng(seed)) for seed in range(40)]
    assert all(image.shape == PHOTO.shape and image.dtype == np.uint8 for image in images)
    assert sum((image != PHOTO).any() for image in images) > 20
    np.testing.assert_array_equal(images[7], step(PHOTO, np.random.default_rng(7)))
    sometimes = augmix(AugMix(prob=0.25, aug_prob_coeff=1.0))
    changed = sum((sometimes(PHOTO, np.random.default_rng(seed)) is not PHOTO) for seed in range(200))
    assert 25 < changed < 80


def test_timm_words():
    policy = parse_timm("rand-m9-n3-mstd0.5-inc1-w0")
    assert (policy.magnitude, policy.layers, policy.noise) == (9, 3, 0.5)
    assert policy.increasing and policy.weighted
    assert not parse_timm("rand-inc0").increasing
    mix = parse_timm("augmix-m5-w4-d2")
    assert (mix.kind, mix.magnitude, mix.width, mix.depth, mix.noise) == ("augmix", 5, 4, 2, 0)


def test_no_policy_and_no_probability_change_nothing():
    for op in (TimmAutoAugment(config_str=None), TimmAutoAugment(prob=0)):
        step = timm_augment(op)
        assert all((step(PHOTO, np.random.default_rng(seed)) == PHOTO).all() for seed in range(20))


def test_operations_at_their_neutral_argument_change_nothing():
    for change in (image_ops.brightness, image_ops.contrast, image_ops.color, image_ops.sharpness):
        np.testing.assert_array_equal(change(PHOTO, 1.0), PHOTO)
    moves = image_ops.Moves()
    for move in (moves.shear_x, moves.shear_y, moves.translate_x, moves.translate_y, moves.rotate):
        np.testing.assert_array_equal(move(PHOTO, 0), PHOTO)
    np.testing.assert_array_equal(image_ops.posterize(PHOTO, 8), PHOTO)
    np.testing.assert_array_equal(image_ops.solarize(PHOTO, 256), PHOTO)
    np.testing.assert_array_equal(image_ops.solarize_add(PHOTO, 0), PHOTO)


def test_operations_by_hand():
    np.testing.assert_array_equal(image_ops.posterize(PHOTO, 2), PHOTO & 0xC0)
    np.testing.assert_array_equal(image_ops.posterize(PHOTO, 0), np.zeros_like(PHOTO))
    np.testing.assert_array_equal(image_ops.solarize(PHOTO, 100), np.where(PHOTO < 100, PHOTO, 255 - PHOTO))
    added = np.minimum(PHOTO.astype(int) + 110, 255)
    np.testing.assert_array_equal(image_ops.solarize_add(PHOTO, 110), np.where(PHOTO < 128, added, PHOTO))
    np.testing.assert_array_equal(image_ops.Moves().translate_x(PHOTO, 7)[:, :-7], PHOTO[:, 7:])


def test_hue_turns_red_to_green_to_blue():
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 255
    np.testing.assert_array_equal(image_ops.hue(red, 0), red)
    turned = [image_ops.hue(red, turn)[0, 0] for turn in (1 / 3, 2 / 3)]
    assert [int(color.argmax()) for color in turned] == [1, 2] and all(max(color) > 240 for color in turned)


def changed(op, count: int = 60) -> list[bool]:
    transform, plain = compose([op]), compose([])
    expected = plain(PHOTO, np.random.default_rng(0))
    return [(transform(PHOTO, np.random.default_rng(seed)) != expected).any() for seed in range(count)]


def test_color_jitter_grayscale_and_lighting():
    assert all(changed(ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)))
    assert not any(changed(ColorJitter(brightness=0.4, prob=0)))
    assert not any(changed(ColorJitter()))
    assert 15 < sum(changed(RandomGrayscale(p=0.5))) < 45
    assert sum(changed(PCALighting())) > 50
    grey = compose([RandomGrayscale(p=1)])(PHOTO, np.random.default_rng(0))
    assert (grey == grey[:1]).all()


def test_the_order_of_channels():
    rgb, bgr = (
        compose([DecodeImage(to_rgb=to_rgb)])(PHOTO, np.random.default_rng(0)) for to_rgb in (True, False)
    )
    np.testing.assert_array_equal(bgr, rgb[::-1])


def test_a_crop_at_a_ratio_and_a_drawn_interpolation():
    square = compose([CropImageAtRatio(size=32, pad=8)])(PHOTO, np.random.default_rng(0))
    assert square.shape == (3, 32, 32)
    np.testing.assert_array_equal(square, np.moveaxis(PHOTO[4:36, 14:46], 2, 0))
    crop = compose([RandCropImage(size=20, interpolation="random")])
    assert crop(PHOTO, np.random.default_rng(0)).shape == (3, 20, 20)
