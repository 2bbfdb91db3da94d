from __future__ import annotations

import os
import pickle
import tarfile

import numpy as np
import pytest

from lowbit.data.formats import open_cifar10
from lowbit.errors import LowbitError

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
