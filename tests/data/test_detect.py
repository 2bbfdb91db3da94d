from __future__ import annotations

import gzip

import numpy as np
import pytest

from lowbit.data.formats import CLASSES
from lowbit.data.image_folder import FolderDataset, ListFileDataset, open_dataset
from lowbit.errors import LowbitError
from tests.support.pictures import encoded, idx_file, picture


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
