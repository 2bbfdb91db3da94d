from __future__ import annotations

import gzip

import numpy as np
import pytest

from lowbit.data.formats import open_idx
from lowbit.errors import LowbitError
from tests.support.pictures import idx_file

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8)
LABELS = np.array([9, 0, 3, 3, 1, 2], np.uint8)


def write(folder, prefix: str, images: bytes, labels: bytes, joint: str = "-", packed: bool = False) -> None:
    for kind, data in ((f"images{joint}idx3", images), (f"labels{joint}idx1", labels)):
        name = f"{prefix}-{kind}-ubyte" + (".gz" if packed else "")
        (folder / name).write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("joint", ["-", "."])
def test_both_splits_packed_or_not(tmp_path, packed, joint):
    write(tmp_path, "train", idx_file(IMAGES), idx_file(LABELS), joint, packed)
    write(tmp_path, "t10k", idx_file(IMAGES[:2]), idx_file(LABELS[:2]), joint, packed)
    train, val = open_idx(tmp_path, "train"), open_idx(tmp_path, "val")
    assert (len(train), len(val)) == (6, 2)
    assert train.label(0) == 9 and train.classes == list("0123456789")
    assert np.array_equal(train.image(2), np.dstack([IMAGES[2]] * 3))


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(LowbitError, match="no train-images-idx3-ubyte"):
        open_idx(tmp_path, "train")
    write(tmp_path, "train", idx_file(IMAGES)[:-1], idx_file(LABELS))
    with pytest.raises(
        LowbitError, match=r"train-images-idx3-ubyte: 4703 values, but its header says \[6, 28, 28\]"
    ):
        open_idx(tmp_path, "train")
    write(tmp_path, "train", idx_file(IMAGES), b"\0\0")
    with pytest.raises(LowbitError, match=r"train-labels.*not an idx file of bytes \(it begins with 0000\)"):
        open_idx(tmp_path, "train")
    write(tmp_path, "train", idx_file(LABELS), idx_file(LABELS))
    with pytest.raises(LowbitError, match=r"train-images.*1 dimensions, expected 3"):
        open_idx(tmp_path, "train")
    write(tmp_path, "train", idx_file(IMAGES), idx_file(LABELS[:-1]))
    with pytest.raises(LowbitError, match="6 images but 5 labels"):
        open_idx(tmp_path, "train")
    write(tmp_path, "train", idx_file(IMAGES), idx_file(LABELS + 1))
    with pytest.raises(LowbitError, match="image #0 has label 10"):
        open_idx(tmp_path, "train")


@pytest.mark.parametrize("length", [0, 5, 40])
def test_a_truncated_gzip_is_named(tmp_path, length):
    write(tmp_path, "train", idx_file(IMAGES), idx_file(LABELS), packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(LowbitError, match=r"train-images-idx3-ubyte\.gz: "):
        open_idx(tmp_path, "train")


@pytest.mark.parametrize("shape", [(6, 0, 0), (6, 28, 0), (0, 28, 28)])
def test_images_without_pixels_are_an_error(tmp_path, shape):
    write(tmp_path, "train", idx_file(np.zeros(shape, np.uint8)), idx_file(LABELS[: shape[0]]))
    with pytest.raises(LowbitError, match=r"its images are|holds no images") as caught:
        open_idx(tmp_path, "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_a_header_that_promises_too_much(tmp_path, packed):
    huge = b"\0\0\x08\x03" + 3 * b"\xff\xff\xff\xff" + b"pixels"
    write(tmp_path, "train", huge, idx_file(LABELS), packed=packed)
    with pytest.raises(LowbitError, match=r"its header says \[4294967295, .*which cannot be"):
        open_idx(tmp_path, "train")
    write(tmp_path, "train", idx_file(IMAGES) + b"more", idx_file(LABELS), packed=packed)
    with pytest.raises(LowbitError, match="more than 4704 values"):
        open_idx(tmp_path, "train")
