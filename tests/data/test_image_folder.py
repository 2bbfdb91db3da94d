from __future__ import annotations

import gzip
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

from lowbit.data.dataset import BadImageError
from lowbit.data.formats import CLASSES
from lowbit.data.image_folder import FolderDataset, ListFileDataset, open_dataset, read_list
from lowbit.errors import LowbitError
from tests.support.pictures import encoded, idx_file, picture


def test_classes_are_sorted_and_labels_follow(class_folders):
    dataset = FolderDataset(class_folders / "train")
    assert dataset.classes == ["cat", "dog", "emu"]
    assert [dataset.label(index) for index in range(len(dataset))] == [0, 0, 0, 1, 1, 2]
    assert dataset.name(3) == str(class_folders / "train" / "dog" / "0.jpg")
    assert dataset.image(0).shape == (48, 64, 3)


def test_a_class_without_validation_images_does_not_shift_labels(class_folders):
    dataset = FolderDataset(class_folders / "val", ["cat", "dog", "emu"])
    assert [dataset.label(index) for index in range(len(dataset))] == [0, 2]


def test_other_files_and_hidden_folders_are_left_out(class_folders):
    cat = class_folders / "train" / "cat"
    (cat / "notes.txt").write_text("x")
    (cat / ".hidden.jpg").write_text("x")
    (class_folders / "train" / ".cache").mkdir()
    (cat / "more").mkdir()
    (cat / "more" / "UPPER.PNG").write_bytes(encoded(picture(), "PNG"))
    dataset = FolderDataset(class_folders / "train")
    assert dataset.classes == ["cat", "dog", "emu"] and len(dataset) == 7


def test_order_does_not_depend_on_the_file_system(class_folders):
    names = [str(path) for path in sorted((class_folders / "train").rglob("*.jpg"))]
    dataset = FolderDataset(class_folders / "train")
    assert [dataset.name(index) for index in range(len(dataset))] == names


def test_a_validation_class_unknown_to_training_is_an_error(class_folders):
    (class_folders / "val" / "catt").mkdir()
    with pytest.raises(
        LowbitError, match=r'catt: "catt" is not one of the classes trained on, did you mean "cat"'
    ):
        FolderDataset(class_folders / "val", ["cat", "dog", "emu"])


def test_no_class_folders_and_no_images(tmp_path):
    with pytest.raises(LowbitError, match="no class folders; expected"):
        FolderDataset(tmp_path / "missing")
    (tmp_path / "cat").mkdir()
    with (
        pytest.warns(UserWarning, match="cat: no images"),
        pytest.raises(LowbitError, match=r"looked for \.jpg"),
    ):
        FolderDataset(tmp_path)


def test_one_class_only_and_an_empty_class_are_warnings(class_folders):
    shutil.rmtree(class_folders / "train" / "dog")
    shutil.rmtree(class_folders / "train" / "emu")
    with pytest.warns(UserWarning, match="one class"):
        assert len(FolderDataset(class_folders / "train")) == 3
    (class_folders / "val" / "fox").mkdir()
    with pytest.warns(UserWarning, match="fox: no images; the class can never be learned"):
        FolderDataset(class_folders / "val")


def test_a_file_that_vanished_is_named(class_folders):
    dataset = FolderDataset(class_folders / "train")
    (class_folders / "train" / "cat" / "0.jpg").unlink()
    with pytest.raises(BadImageError, match=r"0\.jpg: cannot be read"):
        dataset.image(0)


def make(path, kind: str) -> None:
    """Something at `path` that no image reader may wait for."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    else:
        targets = {
            "device": "/dev/zero",
            "fifo behind a link": "fifo",
            "endless link": path.name,
            "gone": "gone",
        }
        if kind == "fifo behind a link":
            os.mkfifo(path.with_name("fifo"))
        path.symlink_to(targets[kind])


@pytest.mark.parametrize("kind", ["fifo", "device", "fifo behind a link", "endless link", "gone", "socket"])
def test_what_is_no_file_is_a_bad_image_and_blocks_nobody(class_folders, kind, monkeypatch):
    monkeypatch.chdir(class_folders / "train" / "cat")  # the path of a socket must be short
    make(Path("bad.jpg"), kind)
    dataset = FolderDataset(class_folders / "train")
    assert len(dataset) == 7
    with pytest.raises(BadImageError, match=r"bad\.jpg: cannot be read") as caught:
        dataset.image(3)
    assert "\n" not in str(caught.value)


def test_a_link_that_leads_up_is_an_error(class_folders):
    for name in ("one", "two"):  # two loops in one folder would be followed 2^40 times
        (class_folders / "train" / "cat" / name).symlink_to("..")
    with pytest.raises(LowbitError, match="a symbolic link to a folder that is read already"):
        FolderDataset(class_folders / "train")


def test_links_to_other_folders_are_followed(class_folders):
    (class_folders / "train" / "cat" / "more").symlink_to(class_folders / "val" / "cat")
    (class_folders / "train" / "fox").symlink_to(class_folders / "val" / "emu")
    (class_folders / "train" / "loop").symlink_to("loop")
    dataset = FolderDataset(class_folders / "train")
    assert len(dataset) == 8 and dataset.classes == ["cat", "dog", "emu", "fox"]


def test_a_class_must_have_a_name_in_utf_8(class_folders):
    os.mkdir(os.fsencode(class_folders) + b"/train/\xff")
    with pytest.raises(LowbitError, match=r"the folder's name '\\+udcff' is not in UTF-8; rename it"):
        FolderDataset(class_folders / "train")


def test_a_folder_that_cannot_be_listed(class_folders, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(LowbitError, match=r"train: cannot be read \(Permission denied\)"):
        FolderDataset(class_folders / "train")


@pytest.mark.parametrize("path", ["nul\0", "x" * 5000, "\udcff"])
def test_paths_that_cannot_be(path):
    with pytest.raises(LowbitError) as caught:
        open_dataset(path, "train")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    str(caught.value).encode()


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


def test_class_folders(class_folders):
    train, val = open_dataset(class_folders, "train"), open_dataset(str(class_folders), "val")
    assert isinstance(train, FolderDataset) and train.classes == val.classes == ["cat", "dog", "emu"]
    assert [val.label(index) for index in range(len(val))] == [0, 2]  # there is no dog in val/


def test_validation_folders_alone(class_folders):
    (class_folders / "train").rename(class_folders / "other")
    assert open_dataset(class_folders, "val").classes == ["cat", "emu"]


def test_list_files_come_before_folders(class_folders):
    (class_folders / "train_list.txt").write_text("train/cat/0.jpg 1\ntrain/dog/0.jpg 0\n")
    (class_folders / "val_list.txt").write_text("val/cat/0.jpg 1\n")
    train = open_dataset(class_folders, "train")
    assert isinstance(train, ListFileDataset) and train.classes == ["dog", "cat"]
    with pytest.warns(UserWarning, match="one class"):
        assert open_dataset(class_folders, "val").classes == ["dog", "cat"]


def test_classes_of_lists_without_a_folder_each_are_numbers(tmp_path):
    (tmp_path / "train_list.txt").write_text("train/a.jpg 0\ntrain/b.jpg 2\n")
    (tmp_path / "val_list.txt").write_text("val/a.jpg 1\nval/b.jpg 2\n")
    assert open_dataset(tmp_path, "train").classes == open_dataset(tmp_path, "val").classes == ["0", "1", "2"]


def test_a_validation_label_beyond_training_is_named(tmp_path):
    (tmp_path / "train_list.txt").write_text("train/a.jpg 0\ntrain/b.jpg 2\n")
    (tmp_path / "val_list.txt").write_text("val/a.jpg 1\nval/b.jpg 3\n")
    with pytest.raises(LowbitError, match=r"val_list\.txt, line 2: label 3 is outside 0\.\.2"):
        open_dataset(tmp_path, "val")


def test_labels_beyond_the_model_are_named(tmp_path, class_folders):
    with pytest.raises(LowbitError, match=r"3 classes, but the model has 2; set its number of classes"):
        open_dataset(class_folders, "train", num_classes=2)
    assert len(open_dataset(class_folders, "train", num_classes=1000).classes) == 3
    (tmp_path / "train_list.txt").write_text("a.jpg 0\nb.jpg 7\n")
    with pytest.raises(LowbitError, match=r"train_list\.txt, line 2: label 7 is outside 0\.\.4"):
        open_dataset(tmp_path, "train", num_classes=5)


def test_idx_cifar_and_digits(tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(
        gzip.compress(idx_file(np.zeros((6, 28, 28), np.uint8)))
    )
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_file(np.arange(6, dtype=np.uint8)))
    assert len(open_dataset(tmp_path, "train")) == 6
    cifar = tmp_path / "cifar-10-batches-bin"
    cifar.mkdir()
    records = np.zeros((4, 3073), np.uint8)
    records[:, 0] = range(4)
    (cifar / "test_batch.bin").write_bytes(records.tobytes())
    assert open_dataset(tmp_path, "val").classes == CLASSES
    assert len(open_dataset("digits", "val")) == 360


def test_missing_empty_and_unknown_folders_say_what_was_looked_for(tmp_path):
    with pytest.raises(LowbitError, match="nowhere: no such folder"):
        open_dataset(tmp_path / "nowhere", "train")
    with pytest.raises(
        LowbitError, match=r"the folder is empty; looked for train_list\.txt; train/<class>/<image>"
    ):
        open_dataset(tmp_path, "train")
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "a.jpg").write_bytes(b"")
    with pytest.raises(LowbitError, match=r"val has no class folders in it\. Looked for .*t10k-images"):
        open_dataset(tmp_path, "val")
    (tmp_path / "file.tar").write_bytes(b"")
    with pytest.raises(LowbitError, match=r"file\.tar: not a folder, .*extract"):
        open_dataset(tmp_path / "file.tar", "val")


def test_class_folders_at_the_top_get_a_hint(class_folders):
    with pytest.raises(
        LowbitError, match="holds the folders cat, dog, emu: put the class folders into train/ and val/"
    ):
        open_dataset(class_folders / "train", "train")


def test_an_unknown_split_is_an_error(class_folders):
    with pytest.raises(LowbitError, match='no split "valid", did you mean "val"'):
        open_dataset(class_folders, "valid")


def test_class_folders_take_a_trained_models_labels_by_name(tmp_path):
    for name in ("square", "triangle"):
        folder = tmp_path / "val" / name
        folder.mkdir(parents=True)
        (folder / "1.png").write_bytes(encoded(picture(), "PNG"))
    dataset = open_dataset(tmp_path, "val", classes=["circle", "cross", "square", "triangle"])
    assert [dataset.label(index) for index in range(2)] == [2, 3]
    with pytest.raises(LowbitError, match=r'"square" is not one of the classes trained on'):
        open_dataset(tmp_path, "val", classes=["circle", "cross"])


def test_a_validation_folder_may_be_given_by_itself(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(encoded(picture(), "PNG"))
    assert open_dataset(tmp_path, "val").classes == ["cat", "dog"]
    with pytest.raises(LowbitError, match="put the class folders into train/ and val/"):
        open_dataset(tmp_path, "train")
