from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lowbit.config.transform_ops import (
    OPS,
    AutoAugment,
    CropImage,
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    RandomCropImage,
    RandomErasing,
    ResizeImage,
    ToCHWImage,
    parse_op,
)
from lowbit.data.erasing import ERASERS
from lowbit.data.transforms import compose, draw_box
from lowbit.errors import LowbitError
from tests.support.pictures import picture

PICTURE = picture(48, 64)


def run(*ops, image=PICTURE, seed=0) -> np.ndarray:
    return compose(ops)(image, np.random.default_rng(seed))


def pixels(*ops, **options) -> np.ndarray:
    """The result without normalisation, as HWC uint8."""
    return run(*ops, **options).transpose(1, 2, 0).astype(np.uint8)


def test_normalising_gives_planes_of_fp32():
    found = run(NormalizeImage())
    wanted = (PICTURE / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    assert found.dtype == np.float32 and found.flags.c_contiguous
    assert np.allclose(found, wanted.transpose(2, 0, 1), rtol=1e-6, atol=1e-7)
    half = run(NormalizeImage(scale=1, mean=[128, 0, 0], std=[1, 2, 4]))
    assert np.array_equal(half[1], PICTURE[:, :, 1] / 2)


def test_without_normalising_values_are_kept():
    assert np.array_equal(pixels(DecodeImage(), ToCHWImage()), PICTURE)


def test_results_are_written_where_asked():
    batch = np.zeros((2, 3, 10, 10), np.float32)
    transform = compose([CropImage(size=10), NormalizeImage()])
    found = transform(PICTURE, np.random.default_rng(0), batch[1])
    assert np.shares_memory(found, batch) and not batch[0].any()
    assert np.array_equal(batch[1], transform(PICTURE, np.random.default_rng(0)))
    with pytest.raises(LowbitError, match="becomes 64x48 where the first image became 10x10"):
        compose([])(PICTURE, np.random.default_rng(0), batch[0])


def test_the_input_is_left_as_it_is():
    image = PICTURE.copy()
    ops = [
        RandCropImage(size=20),
        RandFlipImage(prob=1),
        AutoAugment(),
        NormalizeImage(),
        RandomErasing(EPSILON=1),
    ]
    for seed in range(20):
        run(*ops, image=image, seed=seed)
    assert np.array_equal(image, PICTURE)


@pytest.mark.parametrize("size", [20, (24, 20)])
def test_centre_crop_takes_width_then_height(size):
    width, height = (size, size) if isinstance(size, int) else size
    found = pixels(CropImage(size=size))
    left, top = (64 - width) // 2, (48 - height) // 2
    assert np.array_equal(found, PICTURE[top : top + height, left : left + width])


def test_resizing():
    assert run(ResizeImage(size=(30, 20))).shape == (3, 20, 30)
    assert run(ResizeImage(resize_short=24)).shape == (3, 24, 32)
    assert run(ResizeImage(resize_short=96), image=PICTURE.transpose(1, 0, 2).copy()).shape == (3, 128, 96)
    assert run(ResizeImage(resize_short=1), image=np.zeros((300, 1, 3), np.uint8)).shape == (3, 300, 1)
    assert np.array_equal(pixels(ResizeImage(size=(64, 48))), PICTURE)
    assert abs(pixels(ResizeImage(size=(32, 24))).astype(int) - picture(24, 32)).max() < 8


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "area", "lanczos"])
def test_interpolations_differ_and_backends_agree_on_smooth_images(interpolation):
    ours = pixels(ResizeImage(size=(40, 30), interpolation=interpolation)).astype(int)
    pil = pixels(ResizeImage(size=(40, 30), interpolation=interpolation, backend="pil")).astype(int)
    assert abs(ours - pil).mean() < 3
    noise = np.random.default_rng(0).integers(0, 256, PICTURE.shape, dtype=np.uint8)
    options = {"image": noise}
    reference = pixels(ResizeImage(size=(40, 30), interpolation="nearest"), **options)
    found = pixels(ResizeImage(size=(40, 30), interpolation=interpolation), **options)
    assert np.array_equal(found, reference) == (interpolation == "nearest")


def test_the_pillow_backend_is_pillow():
    found = pixels(ResizeImage(size=(17, 23), backend="pil"))
    assert np.array_equal(
        found, np.asarray(Image.fromarray(PICTURE).resize((17, 23), Image.Resampling.BILINEAR))
    )


@given(
    st.integers(1, 400),
    st.integers(1, 400),
    st.integers(0, 2**32),
    st.booleans(),
    st.sampled_from([0.08, 0.5, 1.0]),
)
def test_boxes_fit_and_keep_their_limits(width, height, seed, log, smallest):
    op = RandCropImage(size=8, scale=(smallest, 1), use_log_aspect=log)
    left, top, box_width, box_height = draw_box(width, height, op, np.random.default_rng(seed))
    assert left >= 0 and left + box_width <= width and box_width >= 1
    assert top >= 0 and top + box_height <= height and box_height >= 1
    if min(width, height) > 100 and smallest < 0.5 and 0.75 < width / height < 4 / 3:
        assert 0.07 < box_width * box_height / (width * height) <= 1
        assert 0.7 < box_width / box_height < 1.4


def test_a_crop_of_all_is_a_resize():
    op = RandCropImage(size=(32, 24), scale=(1, 1), ratio=(64 / 48, 64 / 48))
    assert np.array_equal(pixels(op), pixels(ResizeImage(size=(32, 24))))


def test_boxes_reach_every_corner():
    op = RandCropImage(size=8)
    boxes = [draw_box(100, 100, op, np.random.default_rng(seed)) for seed in range(500)]
    assert min(box[0] for box in boxes) == min(box[1] for box in boxes) == 0
    assert max(box[0] + box[2] for box in boxes) == max(box[1] + box[3] for box in boxes) == 100
    areas = [box[2] * box[3] / 1e4 for box in boxes]
    assert 0.4 < np.mean(areas) < 0.6


def test_cifars_crop_pads_with_black():
    image = np.full((32, 32, 3), 200, np.uint8)
    found = [pixels(RandomCropImage(size=32, padding=4), image=image, seed=seed) for seed in range(100)]
    assert all(crop.shape == (32, 32, 3) for crop in found)
    assert set(np.unique(np.stack(found))) == {0, 200}
    assert max((crop == 0).all(axis=2).sum() for crop in found) == 32 * 32 - 28 * 28
    shifts = {int((crop[16, :, 0] == 0).sum()) for crop in found}
    assert shifts == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("code", "turned"), [(1, PICTURE[:, ::-1]), (0, PICTURE[::-1]), (-1, PICTURE[::-1, ::-1])]
)
def test_flips(code, turned):
    assert np.array_equal(pixels(RandFlipImage(flip_code=code, prob=1)), turned)
    assert np.array_equal(pixels(RandFlipImage(flip_code=code, prob=0)), PICTURE)
    count = sum(
        np.array_equal(pixels(RandFlipImage(flip_code=code), seed=seed), turned) for seed in range(200)
    )
    assert 70 < count < 130


def test_a_sample_depends_on_its_generator_alone():
    ops = [RandCropImage(size=16), RandFlipImage(), AutoAugment(), NormalizeImage(), RandomErasing()]
    np.random.seed(0)
    first = run(*ops, seed=5)
    np.random.seed(1)
    assert np.array_equal(first, run(*ops, seed=5))
    assert not np.array_equal(first, run(*ops, seed=6))


def test_large_photos_may_come_smaller_only_for_a_random_crop():
    assert compose([DecodeImage(), RandCropImage(size=224), NormalizeImage()]).at_least == (915, 915)
    assert compose([RandCropImage(size=100, scale=(1, 1), ratio=(1, 1))]).at_least == (100, 100)
    assert compose([ResizeImage(resize_short=256), CropImage(size=224)]).at_least is None
    assert compose([]).at_least is None


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([NormalizeImage(), CropImage(size=8)], "CropImage works on pixels; put it before NormalizeImage"),
        ([RandomErasing(), NormalizeImage()], "RandomErasing works on normalised values; put it after"),
        ([RandomErasing()], "put it after NormalizeImage"),
        ([NormalizeImage(), NormalizeImage()], "NormalizeImage is listed 2 times"),
        ([CropImage(size=8), DecodeImage()], "DecodeImage must come first"),
        ([NormalizeImage(mean=[0.5], std=[0.5])], "3 values each, got 1 and 1"),
        ([RandCropImage(size=8, scale=(0.5, 0.1))], r"scale \[0\.5, 0\.1\]"),
        ([RandCropImage(size=8, scale=(0, 1))], "scale"),
        ([RandCropImage(size=8, ratio=(2, 1))], "ratio"),
    ],
)
def test_impossible_lists_are_errors(ops, message):
    with pytest.raises(LowbitError, match=message):
        compose(ops)


def test_every_operation_of_the_config_is_carried_out():
    arguments = {
        "RandCropImage": {"size": 16},
        "RandomCropImage": {"size": 16, "padding": 2},
        "CropImage": {"size": 16},
        "ResizeImage": {"size": 16},
        "RandCropImageV2": {"size": 16},
        "CropImageAtRatio": {"size": 16, "pad": 2},
    }
    for name in OPS:
        op = parse_op({name: arguments.get(name, {})})
        ops = [NormalizeImage(), op] if type(op) in ERASERS else [op]
        assert run(*ops).shape[0] == 3
