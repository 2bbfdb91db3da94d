from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import tarfile

import numpy as np
import pytest

from lowbit.data import formats as digits
from lowbit.data.formats import open_cifar10, open_digits, open_idx
from lowbit.errors import LowbitError
from tests.support.pictures import idx_file

PER_BATCH = 3
NAMES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def batch(number: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (PER_BATCH, 3072), dtype=np.uint8), rng.integers(0, 10, PER_BATCH).tolist()


@pytest.fixture(params=["python", "binary"])
def folder(request, tmp_path):
    root = tmp_path / ("cifar-10-batches-py" if request.param == "python" else "cifar-10-batches-bin")
    root.mkdir()
    for number, name in enumerate(NAMES):
        images, labels = batch(number)
        if request.param == "python":
            value = {
                "batch_label": name,
                "labels": labels,
                "data": images,
                "filenames": ["a.png"] * PER_BATCH,
            }
            (root / name).write_bytes(pickle.dumps(value, 2))
        else:
            rows = np.concatenate([np.array(labels, np.uint8)[:, None], images], axis=1)
            (root / f"{name}.bin").write_bytes(rows.tobytes())
    return root


def pack(folder, tmp_path):
    kind = "python" if folder.name.endswith("py") else "binary"
    archive = tmp_path / "packed" / f"cifar-10-{kind}.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(folder.iterdir(), reverse=True):  # not the order of the batches
            tar.add(path, f"{folder.name}/{path.name}")
    return archive


def test_folder_parent_archive_and_its_folder_all_open(folder, tmp_path):
    archive = pack(folder, tmp_path)
    for source in (folder, folder.parent, archive, archive.parent):
        train, val = open_cifar10(source, "train"), open_cifar10(source, "val")
        assert (len(train), len(val)) == (15, 3)
        images, labels = batch(1)  # data_batch_2
        assert train.label(4) == labels[1] and train.classes[labels[1]] == train.classes[train.label(4)]
        # A record is the red plane, then green, then blue, each row by row.
        assert np.array_equal(train.image(4), images[1].reshape(3, 32, 32).transpose(1, 2, 0))
        assert np.array_equal(val.image(0), batch(5)[0][0].reshape(3, 32, 32).transpose(1, 2, 0))
        assert val.name(2) == "cifar10 val #2"


def test_a_missing_or_truncated_batch_is_named(folder):
    last = sorted(folder.glob("data_batch_5*"))[0]
    last.write_bytes(last.read_bytes()[:-10])
    with pytest.raises(LowbitError, match=r"data_batch_5.*(truncated|damaged)"):
        open_cifar10(folder, "train")
    last.unlink()
    with pytest.raises(LowbitError, match=r"data_batch_5.*cannot be read"):
        open_cifar10(folder, "train")


def test_a_damaged_archive_is_named(folder, tmp_path):
    archive = pack(folder, tmp_path)
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) // 2])
    with pytest.raises(LowbitError, match=r"cifar-10-.*\.tar\.gz: .*again"):
        open_cifar10(archive, "train")
    archive.write_bytes(b"not an archive")
    with pytest.raises(LowbitError, match="damaged archive"):
        open_cifar10(archive, "val")


def test_a_label_out_of_range_is_named(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(bytes([0]) + bytes(3072) + bytes([10]) + bytes(3072))
    with pytest.raises(LowbitError, match=r"cifar10 val: image #1 has label 10, outside 0\.\.9"):
        open_cifar10(tmp_path, "val")


class Exploit:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_malicious_batch_is_refused_and_does_not_run(tmp_path):
    mark = tmp_path / "ran"
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": Exploit(f"touch {mark}")}, 2))
    with pytest.raises(LowbitError, match=r'test_batch: refused, it names the global ".*system"'):
        open_cifar10(tmp_path, "val")
    assert not mark.exists()


def test_another_pickle_is_not_a_batch(tmp_path):
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": [1, 2]}, 2))
    with pytest.raises(LowbitError, match="not a CIFAR-10 batch"):
        open_cifar10(tmp_path, "val")


def test_nothing_there(tmp_path):
    with pytest.raises(LowbitError, match="no CIFAR-10 here; looked for cifar-10-batches-py"):
        open_cifar10(tmp_path, "train")


@pytest.mark.parametrize(
    "label", [1.5, 1.0, "3", None, True, -1, 10, 10**20, np.float32(2), [1], float("nan")], ids=repr
)
def test_labels_that_are_no_whole_numbers_are_errors(tmp_path, label):
    root = tmp_path / "cifar-10-batches-py"
    root.mkdir()
    images, labels = batch(0)
    labels[1] = label
    (root / "test_batch").write_bytes(pickle.dumps({"data": images, "labels": labels}, 2))
    with pytest.raises(
        LowbitError, match="test_batch: the label of image #1 must be a whole number"
    ) as caught:
        open_cifar10(root, "val")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "labels", [None, 3, {"a": 1}, np.float32([1, 2, 3]), np.zeros((3, 1), "i8")], ids=repr
)
def test_labels_of_another_kind_are_errors(tmp_path, labels):
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": batch(0)[0], "labels": labels}, 2))
    with pytest.raises(LowbitError, match=r"test_batch: .*whole number"):
        open_cifar10(tmp_path, "val")


def test_labels_may_be_an_integer_array(tmp_path):
    value = {"data": batch(0)[0], "labels": np.array([1, 2, 3], "u1")}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(value, 2))
    assert [open_cifar10(tmp_path, "val").label(index) for index in range(3)] == [1, 2, 3]


def test_a_batch_that_is_a_pipe_does_not_block(folder):
    first = folder / ("data_batch_2.bin" if folder.name.endswith("bin") else "data_batch_2")
    first.unlink()
    os.mkfifo(first)
    with pytest.raises(LowbitError, match=r"cannot be read \(it is a FIFO"):
        open_cifar10(folder, "train")


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


def test_the_split_is_fixed_and_holds_every_digit_once():
    train, val = open_digits("train"), open_digits("val")
    assert (len(train), len(val)) == (1437, 360)
    labels = [dataset.label(index) for dataset in (train, val) for index in range(len(dataset))]
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert min(np.bincount(labels[1437:])) >= 25
    # Which digits are in which split must not move: figures in the documents depend on it.
    assert hashlib.sha256(bytes(labels)).hexdigest()[:16] == "58d022c02cb75337"


def test_images_are_what_scikit_learn_shows():
    from sklearn.datasets import load_digits

    image = open_digits("val").image(0)
    assert image.shape == (32, 32, 3) and image.dtype == np.uint8 and image.max() > 200
    centres = image[1:-1, 1:-1, 0].reshape(-1)  # corners of an upscaled image equal the small image's
    corners = image[[0, 0, -1, -1], [0, -1, 0, -1], 0]
    table = np.rint(load_digits().images * 255 / 16)
    assert any(np.array_equal(small[[0, 0, -1, -1], [0, -1, 0, -1]], corners) for small in table)
    assert centres.std() > 30


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(LowbitError, match=r"pip install 'lowbit\[demo\]'"):
        open_digits("train")
