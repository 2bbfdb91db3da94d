from __future__ import annotations

import io
import tarfile

import pytest

from lowbit.data import open_dataset
from lowbit.data.decode import read_image
from lowbit.data.lite import lite_files
from lowbit.errors import LowbitError
from lowbit.tipc import prepare_chain, read_config

LITE = "lite_train_lite_infer"


@pytest.fixture
def root(repo):
    (repo.parents[3] / "demo.jpg").unlink()
    return repo.parents[3]


def test_lite_data_and_an_image_are_drawn_once(repo, root):
    assert prepare_chain(read_config(repo), LITE) == [
        "./lite_data: 16 training and 16 validation images, drawn",
        "./demo.jpg: an image, drawn",
    ]
    assert len(open_dataset(root / "lite_data", "train")) == 16
    assert read_image(str(root / "demo.jpg")).shape[2] == 3
    (root / "lite_data/mine").write_text("", "utf-8")
    again = prepare_chain(read_config(repo), LITE)
    assert again == ["./lite_data: there already", "./demo.jpg: there already"]


def test_data_of_ones_own_is_left_alone(repo, root):
    (root / "lite_data").mkdir()
    assert "drawn" in prepare_chain(read_config(repo), LITE)[0]  # an empty folder is no data
    other = root / "lite_data/train/circle"
    for file in other.iterdir():
        file.unlink()
    assert prepare_chain(read_config(repo), LITE)[0] == "./lite_data: there already"
    assert list(other.iterdir()) == []


def pack(path, files: dict[str, bytes | tarfile.TarInfo]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, tarfile.TarInfo):
                member = content
                content = b""
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


OWN = {
    f"{split}/{name}/{number}.jpg": lite_files()[f"{split}/{name}/{name}_{number}.jpg"]
    for split in ("train", "val")
    for name in ("circle", "square")
    for number in range(3)
}


@pytest.mark.parametrize("place", ["lite_data.tar", "test_images/lite_data.tar"])
@pytest.mark.parametrize("top", ["", "lite_data/", "./mine/"])
def test_an_archive_of_ones_own_is_unpacked(repo, root, place, top):
    pack(root / place, {top + name: content for name, content in OWN.items()})
    (root / "lite_data").mkdir()  # empty: no data
    lines = prepare_chain(read_config(repo), LITE)
    assert lines[0] == f"./lite_data: 12 files, unpacked from {place}"
    assert len(open_dataset(root / "lite_data", "train")) == 6
    assert all((root / "lite_data" / name).read_bytes() == content for name, content in OWN.items())
    again = prepare_chain(read_config(repo), LITE)
    assert again[0] == f"./lite_data: there already; {place} is not unpacked over it"
    assert not list(root.glob(".lite_data.*"))


def test_the_archive_in_the_root_comes_first(repo, root):
    pack(root / "lite_data.tar", OWN)
    pack(root / "test_images/lite_data.tar", {"train/a/1.jpg": b""})
    assert "12 files, unpacked from lite_data.tar" in prepare_chain(read_config(repo), LITE)[0]


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no files"),
        ({"../outside.jpg": b"x"}, '"../outside.jpg" is a link, a device or outside'),
        ({"/outside.jpg": b"x"}, '"/outside.jpg" is a link, a device or outside'),
        ({"link": link("train", "/etc")}, '"train" is a link'),
        ({"a": b"x", "a/b": b"x"}, "cannot unpack"),
    ],
    ids=["empty", "parent", "absolute", "link", "file and folder"],
)
def test_an_archive_that_cannot_be_used_is_an_error_and_leaves_nothing(repo, root, files, message):
    pack(root / "lite_data.tar", files)
    before = sorted(root.rglob("*"))
    with pytest.raises(LowbitError, match=message) as raised:
        prepare_chain(read_config(repo), LITE)
    assert "\n" not in str(raised.value)
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("end", [0, 100, -1000])
def test_a_damaged_archive_is_an_error(repo, root, end):
    pack(root / "lite_data.tar", OWN)
    content = (root / "lite_data.tar").read_bytes()
    (root / "lite_data.tar").write_bytes(content[:end])
    with pytest.raises(LowbitError, match=r"lite_data\.tar: damaged archive"):
        prepare_chain(read_config(repo), LITE)
    assert not (root / "lite_data").exists()


def test_whole_data_must_be_brought(repo, root):
    mode = "whole_train_whole_infer"
    with pytest.raises(LowbitError, match=r"line 11: expected the whole data at ./lite_data, found nothing"):
        prepare_chain(read_config(repo), mode)
    prepare_chain(read_config(repo), LITE)
    with pytest.raises(LowbitError, match="found only lite data; put it there, or a link to it: ln -s"):
        prepare_chain(read_config(repo), mode)
    (root / "lite_data/val_list.txt").unlink()
    assert prepare_chain(read_config(repo), mode)[0] == "./lite_data: there already"


def test_weights_must_be_brought(repo, root):
    with pytest.raises(LowbitError, match=r"line 24: expected weights at .*; put them there"):
        prepare_chain(read_config(repo), "whole_infer")
    path = root / "pretrain_models/mobilenet_v3_small_pretrained.pdparams"
    path.parent.mkdir()
    path.write_text("", "utf-8")
    assert len(prepare_chain(read_config(repo), "whole_infer")) == 2


def test_lines_that_say_nothing(change):
    config = change("norm", {9: "--pretrained:x.pdparams", 11: "--data-path:null", 31: "--img-path:null"})
    with pytest.raises(LowbitError, match=r"line 9: expected weights to start from at x.pdparams"):
        prepare_chain(config, LITE)
    config = change("norm", {11: "--data-path:null", 31: "--img-path:null"})
    assert prepare_chain(config, LITE) == ["line 11 names no data: the training script has to find it"]


@pytest.mark.parametrize("line", ["--data-path", "--img-path", "--pretrained"])
def test_a_path_that_is_too_long(change, line):
    number = {"--data-path": 11, "--img-path": 31, "--pretrained": 9}[line]
    with pytest.raises(LowbitError, match="File name too long; correct the path in") as raised:
        prepare_chain(change("norm", {number: f"{line}:{'x' * 5000}", 27: "inference:infer.py"}), LITE)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


def test_the_51_line_layout_has_its_own_prepare(change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LowbitError, match="expected images for inference"):
        prepare_chain(change("generic"), LITE)
    config = change("generic", {12: "train_infer_img_dir:null"})
    assert prepare_chain(config, LITE) == [
        "the data is named in the repository's own configs: its test_tipc/prepare.sh makes it"
    ]
