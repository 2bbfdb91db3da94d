from __future__ import annotations

import os

import pytest

from lowbit.data.dataset import BadImageError
from lowbit.data.image_folder import ListFileDataset, read_list
from lowbit.errors import LowbitError
from tests.support.pictures import encoded, picture


def write(tmp_path, text: str | bytes):
    path = tmp_path / "train_list.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_paths_may_hold_spaces_and_lines_may_end_in_crlf(tmp_path):
    path = write(tmp_path, "\ufefftrain/my cat.jpg 0\r\ntrain/b\t12  \r\n\r\n/abs/c.jpg   3")
    assert read_list(path) == (["train/my cat.jpg", "train/b", "/abs/c.jpg"], [0, 12, 3])


def test_images_are_relative_to_the_list_or_to_a_root(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "my cat.jpg").write_bytes(encoded(picture(), "JPEG"))
    path = write(tmp_path, "images/my cat.jpg 0\nimages/gone.jpg 2\n")
    dataset = ListFileDataset(path)
    assert dataset.image(0).shape == (48, 64, 3)
    assert dataset.classes == ["0", "1", "2"] and dataset.label(1) == 2
    with pytest.raises(BadImageError, match=r"gone\.jpg: cannot be read"):
        dataset.image(1)
    other = ListFileDataset(write(tmp_path, "my cat.jpg 0\nb.jpg 1"), tmp_path / "images", num_classes=1000)
    assert other.image(0).shape == (48, 64, 3) and len(other.classes) == 1000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cat.jpg", "expected `path label`, got `cat.jpg`"),
        ("cat.jpg dog", "whole number from 0, got `dog`"),
        ("cat.jpg -1", "whole number from 0, got `-1`"),
        ("cat.jpg 1.0", "whole number from 0, got `1.0`"),
        ("cat.jpg ²", "whole number from 0, got `²`"),
        ("cat.jpg 10", r"label 10 is outside 0\.\.9; labels count from 0"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path, f"a.jpg 0\n\n{line}\nb.jpg 1\n")
    with pytest.raises(LowbitError, match=rf"train_list\.txt, line 3: .*{message}"):
        ListFileDataset(path, num_classes=10)


def test_empty_missing_and_binary_lists(tmp_path):
    with pytest.raises(LowbitError, match="names no images; expected lines such as"):
        ListFileDataset(write(tmp_path, "\n \n"))
    with pytest.raises(LowbitError, match="not a text file"):
        ListFileDataset(write(tmp_path, b"\xff\xfe\x00\x81"))
    with pytest.raises(LowbitError, match=r"none\.txt: cannot be read"):
        ListFileDataset(tmp_path / "none.txt")


def test_one_class_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match=r"train_list\.txt: all images have one class"):
        ListFileDataset(write(tmp_path, "a.jpg 3\nb.jpg 3"))


@pytest.mark.parametrize("label", ["1000000", str(10**9), str(10**20), "9" * 5000])
@pytest.mark.parametrize("num_classes", [None, 4])
def test_a_label_beyond_any_model_is_an_error(tmp_path, label, num_classes):
    path = write(tmp_path, f"a.jpg 0\nb.jpg {label}\n")
    with pytest.raises(LowbitError, match=r"line 2: label 9*[10]*") as caught:
        ListFileDataset(path, num_classes=num_classes)
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


def test_leading_zeros_are_no_large_label(tmp_path):
    assert read_list(write(tmp_path, f"a.jpg {'0' * 5000}7\n")) == (["a.jpg"], [7])


def test_a_nul_character_in_a_path_is_an_error(tmp_path):
    with pytest.raises(LowbitError, match=r"line 2: the path `b\\x00.jpg` has a NUL character"):
        ListFileDataset(write(tmp_path, "a.jpg 0\nb\0.jpg 1\n"))


def test_a_list_that_is_no_regular_file(tmp_path):
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo")
    for name in ("zero", "fifo", "nul\0"):
        with pytest.raises(LowbitError, match="cannot be read") as caught:
            ListFileDataset(tmp_path / name)
        assert "\n" not in str(caught.value)
