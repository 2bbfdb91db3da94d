from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from lowbit.config.transform_ops import (
    OPS,
    AutoAugment,
    CropImage,
    DecodeImage,
    NormalizeImage,
    Op,
    RandCropImage,
    RandFlipImage,
    RandomErasing,
    ResizeImage,
    ToCHWImage,
    dump_op,
    parse_op,
)


def test_the_operations_of_paddleclas_and_ours():
    assert set(OPS) == {
        "DecodeImage",
        "RandCropImage",
        "RandomCropImage",
        "RandFlipImage",
        "ResizeImage",
        "CropImage",
        "AutoAugment",
        "NormalizeImage",
        "RandomErasing",
        "ToCHWImage",
        "CropImageAtRatio",
        "RandCropImageV2",
        "ColorJitter",
        "RandomGrayscale",
        "PCALighting",
        "RandAugment",
        "RandAugmentV2",
        "RandAugmentV3",
        "TimmAutoAugment",
        "AugMix",
        "Cutout",
        "GridMask",
        "HideAndSeek",
    }


@pytest.mark.parametrize(
    ("entry", "op"),
    [
        ({"DecodeImage": {"to_rgb": True, "channel_first": False}}, DecodeImage()),
        ({"RandCropImage": {"size": 224}}, RandCropImage(size=224)),
        ({"RandFlipImage": {"flip_code": 1}}, RandFlipImage()),
        ({"ResizeImage": {"resize_short": 256}}, ResizeImage(resize_short=256)),
        ({"CropImage": {"size": [64, 32]}}, CropImage(size=(64, 32))),
        ({"NormalizeImage": {"scale": "1.0/255.0", "order": ""}}, NormalizeImage()),
        ({"ToCHWImage": None}, ToCHWImage()),
        ({"AutoAugment": None}, AutoAugment()),
        ("ToCHWImage", ToCHWImage()),
        (ToCHWImage(), ToCHWImage()),
    ],
)
def test_as_written(entry, op):
    assert parse_op(entry) == op


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"CropImag": {"size": 8}}, 'unknown operation "CropImag", did you mean "CropImage"'),
        ({"Mixup": {}}, 'unknown operation "Mixup", valid: AugMix, AutoAugment, ColorJitter'),
        ("ToCHW", 'did you mean "ToCHWImage"'),
        ({}, "expected one operation"),
        (5, "expected one operation"),
        (None, "expected one operation"),
        ({"CropImage": {"size": 8}, "ToCHWImage": None}, "expected one operation"),
        ({"CropImage": {"sise": 8}}, 'unknown key, did you mean "size"'),
        ({"CropImage": None}, "size"),
        ({"ToCHWImage": 0}, "valid dictionary"),
        ({"ToCHWImage": []}, "valid dictionary"),
        ({"ResizeImage": {}}, "give either resize_short or size"),
        ({"ResizeImage": {"resize_short": 8, "size": 8}}, "give either resize_short or size"),
        ({"RandFlipImage": {"flip_code": 2}}, "1, 0 or -1"),
        ({"RandFlipImage": {"prob": 1.5}}, "less than or equal to 1"),
        ({"NormalizeImage": {"std": [1, 0, 1]}}, "every std must be positive"),
        ({"NormalizeImage": {"std": []}}, "every std must be positive"),
        ({"NormalizeImage": {"mean": [".nan"]}}, "number"),
        ({"DecodeImage": {"to_rgb": 3}}, "boolean"),
        ({"TimmAutoAugment": {"config_str": "randm9"}}, 'expected "rand-'),
        ({"TimmAutoAugment": {"config_str": "rand-m9-q3"}}, "unknown word 'q3' in 'rand-m9-q3', valid: m, n"),
        ({"TimmAutoAugment": {"config_str": "rand-w2"}}, "only w0 exists"),
        ({"TimmAutoAugment": {"config_str": "rand-n0"}}, "layers"),
        ({"ColorJitter": {"hue": [0.5, 0.1]}}, "two ascending"),
        ({"ColorJitter": {"brightness": -1}}, "greater than or equal to 0"),
        ({"GridMask": {"d1": 9, "d2": 9}}, "must be below"),
        ({"DecodeImage": {"channel_first": True}}, "False"),
        ({"AutoAugment": {"policy": "imagnet"}}, "imagenet"),
        ({"RandomErasing": {"EPSILON": -0.1}}, "greater than or equal to 0"),
    ],
)
def test_mistakes(entry, message):
    with pytest.raises((ValueError, ValidationError), match=message):
        parse_op(entry)


@pytest.mark.parametrize(
    "size", [0, -1, 2.5, "224", True, None, [], [224], [224, 0], [1, 2, 3], [1.5, 2], {"w": 1}]
)
def test_an_impossible_size_is_one_mistake(size):
    with pytest.raises(ValidationError) as caught:
        CropImage(size=size)
    assert caught.value.error_count() == 1
    assert "expected a whole number above 0, or two as [width, height], got" in str(caught.value)


@pytest.mark.parametrize("size", [1, 224, (3, 4), [3, 4]])
def test_sizes(size):
    assert CropImage(size=size).size == (tuple(size) if isinstance(size, list) else size)


sizes = st.integers(1, 4096) | st.tuples(st.integers(1, 4096), st.integers(1, 4096))
ops = st.one_of(
    st.just(DecodeImage()),
    st.just(ToCHWImage()),
    st.builds(CropImage, size=sizes),
    st.builds(RandCropImage, size=sizes),
    st.builds(RandFlipImage, prob=st.floats(0, 1)),
    st.builds(ResizeImage, size=sizes),
    st.builds(AutoAugment, policy=st.sampled_from(["imagenet", "cifar10", "svhn"])),
    st.builds(RandomErasing, EPSILON=st.floats(0, 1)),
    st.builds(NormalizeImage, scale=st.floats(-1e6, 1e6), std=st.lists(st.floats(1e-6, 10), min_size=1)),
)


@given(ops)
def test_written_and_read_again(op):
    assert parse_op(dump_op(op)) == op
    assert TypeAdapter(Op).validate_python(dump_op(op)) == op
