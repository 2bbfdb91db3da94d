from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest

from lowbit.config.data import AutoDataset
from lowbit.data.image_folder import FolderDataset, open_dataset
from lowbit.data.lite import write_lite_data
from lowbit.errors import LowbitError
from lowbit.training.inputs import open_section


def test_the_same_bytes_every_time(tmp_path):
    first, second = write_lite_data(tmp_path / "a"), write_lite_data(tmp_path / "b" / "deep")
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)
    assert (first / "lite_data.tar").stat().st_size < 20e6


def test_writing_twice_changes_nothing(tmp_path):
    write_lite_data(tmp_path)
    before = (tmp_path / "lite_data.tar").read_bytes()
    write_lite_data(tmp_path)
    assert (tmp_path / "lite_data.tar").read_bytes() == before


def test_lists_and_folders_agree(tmp_path):
    write_lite_data(tmp_path, tar=False)
    assert not (tmp_path / "lite_data.tar").exists()
    for split in ("train", "val"):
        by_list, by_folder = open_dataset(tmp_path, split), FolderDataset(tmp_path / split)
        assert len(by_list) == len(by_folder) == 16
        assert by_list.classes == by_folder.classes == ["circle", "cross", "square", "triangle"]
        for index in range(16):
            assert by_list.label(index) == by_folder.label(index)
            assert by_list.name(index) == by_folder.name(index)
            assert by_list.image(index).shape == (240, 320, 3)


def test_the_archive_unpacks_to_a_data_set(tmp_path):
    write_lite_data(tmp_path / "lite")
    with tarfile.open(tmp_path / "lite" / "lite_data.tar") as archive:
        members = archive.getmembers()
        assert {(member.mtime, member.uid, member.gid, member.uname) for member in members} == {(0, 0, 0, "")}
        archive.extractall(tmp_path / "out", filter="data")
    assert len(open_dataset(tmp_path / "out" / "lite_data", "val")) == 16


def test_classes_can_be_told_apart_and_images_differ(tmp_path):
    write_lite_data(tmp_path, tar=False)
    train, val = open_dataset(tmp_path, "train"), open_dataset(tmp_path, "val")

    def colour(image):  # of the pixels that stand out most
        spread = np.ptp(image.astype(int), axis=2)
        return image[spread > 60].mean(axis=0)

    known = [colour(train.image(index)) for index in range(16)]
    hits = 0
    for index in range(16):
        distances = [np.abs(colour(val.image(index)) - other).sum() for other in known]
        hits += train.label(int(np.argmin(distances))) == val.label(index)
    assert hits == 16
    assert len({dataset.image(index).tobytes() for dataset in (train, val) for index in range(16)}) == 32


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LowbitError, match=r"cannot write the lite data to .*file: Not a directory"):
        write_lite_data(tmp_path / "file")


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_archive_is_read_as_it_is(tmp_path, split):
    lite = write_lite_data(tmp_path / "lite_data")
    folder, packed = open_dataset(lite, split), open_dataset(lite / "lite_data.tar", split)
    assert packed.classes == folder.classes and len(packed) == len(folder) == 16
    for index in (0, 7, 15):
        np.testing.assert_array_equal(packed.image(index), folder.image(index))
        assert packed.label(index) == folder.label(index)


def test_a_broken_archive_is_an_error(tmp_path):
    (tmp_path / "broken.tar").write_bytes(b"no archive")
    with pytest.raises(LowbitError, match="that can be unpacked"):
        open_dataset(tmp_path / "broken.tar", "train")


def test_an_archive_cannot_write_outside_of_its_folder(tmp_path):
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        member = tarfile.TarInfo("../../escaped.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"bad"))
    with pytest.raises(LowbitError, match="that can be unpacked"):
        open_dataset(tmp_path / "evil.tar", "train")


def test_lists_have_the_classes_of_a_trained_model(tmp_path):
    """Not those of the highest label: a folder may hold images of some classes only."""
    lite = write_lite_data(tmp_path, tar=False)
    (lite / "train_list.txt").write_text("train/circle/circle_0.jpg 0\n")
    numbered = open_section(
        AutoDataset(name="AutoDataset", path=str(lite), split="val"), classes=list("0123456")
    )
    assert len(numbered.classes) == 7 and numbered.label(15) == 3
    names = ["circle", "cross", "square", "triangle", "star"]
    named = open_section(AutoDataset(name="AutoDataset", path=str(lite), split="val"), classes=names)
    assert named.classes == names
    with pytest.raises(LowbitError, match=r"label 3 is outside 0\.\.2"):
        open_section(AutoDataset(name="AutoDataset", path=str(lite), split="val"), classes=["0", "1", "2"])
