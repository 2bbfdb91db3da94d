from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from lowbit.data import open_dataset
from lowbit.data.dataset import BadImageError
from lowbit.data.image_folder import FolderDataset
from lowbit.errors import LowbitError
from tests.support.pictures import encoded, picture


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
