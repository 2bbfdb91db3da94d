"""Binary data sets: CIFAR-10, MNIST's idx files, and the digits of scikit-learn."""

from __future__ import annotations

import gzip
import io
import math
import reprlib
import tarfile
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np

from lowbit.data.dataset import ArrayDataset
from lowbit.errors import LowbitError
from lowbit.extras import install_command
from lowbit.files import open_regular
from lowbit.safe_pickle import load_arrays

_PREFIX = {"train": "train", "val": "t10k"}
_KINDS = {"images": "idx3", "labels": "idx1"}
_UINT8 = 8
_MOST_VALUES = 2**31  # thirty times MNIST: more is a damaged header


def find_idx(folder: Path, split: str, kind: str) -> Path | None:
    """The file with the "images" or "labels" of a split, under any of its usual names, or None."""
    stem = f"{_PREFIX[split]}-{kind}"
    names = [f"{stem}{joint}{_KINDS[kind]}-ubyte{suffix}" for joint in "-." for suffix in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def open_idx(folder: str | Path, split: str) -> ArrayDataset:
    """The 60,000 training or 10,000 test images; grey becomes RGB when an image is taken.

    >>> open_idx("fashion-mnist", "train").image(0).shape  # doctest: +SKIP
    (28, 28, 3)
    """
    arrays = {}
    for kind, dimensions in (("images", 3), ("labels", 1)):
        path = find_idx(Path(folder), split, kind)
        if path is None:
            raise LowbitError(f"{folder}: no {_PREFIX[split]}-{kind}-{_KINDS[kind]}-ubyte or .gz")
        arrays[kind] = read_idx(path)
        if arrays[kind].ndim != dimensions:
            raise LowbitError(f"{path}: {arrays[kind].ndim} dimensions, expected {dimensions} for {kind}")
    classes = [str(label) for label in range(10)]
    return ArrayDataset(arrays["images"], arrays["labels"].astype(np.int64), classes, f"{folder} {split}")


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array in an idx file: two zero bytes, type, dimensions, big-endian sizes, values."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            start = file.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or start[2] != _UINT8 or not start[3]:
                raise LowbitError(f"{path}: not an idx file of bytes (it begins with {start.hex()})")
            sizes = file.read(4 * start[3])
            shape = [int.from_bytes(sizes[at : at + 4], "big") for at in range(0, 4 * start[3], 4)]
            if (expected := math.prod(shape)) > _MOST_VALUES:
                raise LowbitError(f"{path}: its header says {shape}, which cannot be; download it again")
            data = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise LowbitError(f"{path}: cannot be read ({error}); download it again") from error
    if len(data) != expected:
        found = f"more than {expected}" if len(data) > expected else len(data)
        raise LowbitError(f"{path}: {found} values, but its header says {shape}; download it again")
    return np.frombuffer(data, np.uint8).reshape(shape)


# CIFAR-10 from the official archives, python or binary, packed or extracted.


CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
_BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "val": ["test_batch"]}
_PIXELS = 3 * 32 * 32
_MOST_BYTES = 2**28  # of a batch: eight times the official ones


def find_cifar10(path: Path) -> Path | None:
    """The archive or folder of batches at `path` or in it, or None."""
    if path.is_file():
        return path if path.name in ARCHIVES or path.name.removesuffix(".gz") in _unzipped() else None
    if (path / "test_batch").is_file() or (path / "test_batch.bin").is_file():
        return path
    candidates = (path / name for name in (*FOLDERS, *ARCHIVES, *_unzipped()))
    return next((candidate for candidate in candidates if candidate.exists()), None)


def open_cifar10(path: str | Path, split: str) -> ArrayDataset:
    """The 50,000 training or 10,000 test images.

    >>> len(open_cifar10("cifar-10-binary.tar.gz", "val"))  # doctest: +SKIP
    10000
    """
    path = Path(path)
    source = find_cifar10(path)
    if source is None:
        raise LowbitError(f"{path}: no CIFAR-10 here; looked for {', '.join(FOLDERS + ARCHIVES)}")
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for name, file in _batch_files(source, _BATCHES[split]):
        read = _read_binary if name.endswith(".bin") else _read_pickle
        batch_images, batch_labels = read(file, name)
        images.append(batch_images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(batch_labels)
    return ArrayDataset(np.concatenate(images), np.concatenate(labels), CLASSES, f"cifar10 {split}")


def _unzipped() -> tuple[str, ...]:
    return tuple(name.removesuffix(".gz") for name in ARCHIVES)


def _batch_files(source: Path, batches: list[str]) -> Iterator[tuple[str, BinaryIO]]:
    """Every batch of the split as an open file with its name, in order."""
    if source.is_dir():
        suffix = ".bin" if (source / f"{batches[0]}.bin").is_file() else ""
        for batch in batches:
            path = source / f"{batch}{suffix}"
            try:
                with open_regular(path, most=_MOST_BYTES) as file:
                    yield str(path), file
            except OSError as error:
                raise LowbitError(f"{path}: cannot be read ({error.strerror})") from error
        return
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(source) as archive:
            for member in archive:  # one pass, in the archive's order: going back means unpacking again
                name = Path(member.name).name
                if member.isfile() and name.removesuffix(".bin") in batches:
                    if member.size > _MOST_BYTES:
                        raise LowbitError(f"{source}: {name} is of {member.size} bytes, which cannot be")
                    packed = archive.extractfile(member)
                    assert packed is not None  # it is a file
                    contents[name] = packed.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise LowbitError(f"{source}: damaged archive ({error}); download it again") from error
    for batch in batches:
        name = batch if batch in contents else f"{batch}.bin"
        if name not in contents:
            raise LowbitError(f"{source}: holds no {batch}; download the archive again")
        yield f"{source}/{name}", io.BytesIO(contents[name])


def _read_pickle(file: BinaryIO, name: str) -> tuple[np.ndarray, np.ndarray]:
    batch = load_arrays(file, name=name)
    images = batch.get("data") if isinstance(batch, dict) else None
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (_PIXELS,):
        raise LowbitError(f'{name}: not a CIFAR-10 batch ("data" must be uint8 of shape [N, {_PIXELS}])')
    return images, _labels(batch.get("labels", []), name)


def _labels(labels: Any, name: str) -> np.ndarray:
    if isinstance(labels, np.ndarray):
        labels = labels.tolist() if labels.ndim == 1 else None
    if not isinstance(labels, list | tuple):
        raise LowbitError(f'{name}: not a CIFAR-10 batch ("labels" must be a list of whole numbers)')
    for number, label in enumerate(labels):
        whole = isinstance(label, int | np.integer) and not isinstance(label, bool)
        if not whole or not 0 <= label < len(CLASSES):
            raise LowbitError(
                f"{name}: the label of image #{number} must be a whole number from 0 to {len(CLASSES) - 1}, "
                f"got {reprlib.repr(label)}; the file is damaged or of another data set"
            )
    return np.asarray(labels, dtype=np.int64)


def _read_binary(file: BinaryIO, name: str) -> tuple[np.ndarray, np.ndarray]:
    rows = np.frombuffer(file.read(), dtype=np.uint8)
    if rows.size == 0 or rows.size % (1 + _PIXELS):
        raise LowbitError(
            f"{name}: {rows.size} bytes are not whole records of {1 + _PIXELS} bytes; the file is truncated"
        )
    rows = rows.reshape(-1, 1 + _PIXELS)
    return rows[:, 1:], rows[:, 0].astype(np.int64)


# The 1,797 handwritten digits of scikit-learn.


SIDE = 32
_TRAINING = 1437  # four fifths
_SHUFFLE_SEED = 8


def open_digits(split: str) -> ArrayDataset:
    """1,437 training or 360 validation images of 32x32, the same ones on every machine.

    >>> open_digits("train").image(0).shape
    (32, 32, 3)
    """
    table = np.loadtxt(_find(), delimiter=",", dtype=np.float32)
    # The file goes round the digits in order, writer by writer: only a shuffled split has all of both.
    order = np.random.Generator(np.random.Philox(_SHUFFLE_SEED)).permutation(len(table))
    chosen = table[order[:_TRAINING] if split == "train" else order[_TRAINING:]]
    small = np.rint(chosen[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    images = np.stack([cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR) for image in small])
    classes = [str(digit) for digit in range(10)]
    return ArrayDataset(images, chosen[:, 64].astype(np.int64), classes, f"digits {split}")


def _find() -> Path:
    # The file inside scikit-learn's folder: importing scikit-learn, and SciPy with it, takes seconds.
    spec = find_spec("sklearn")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise LowbitError(
            "the handwritten digits come with scikit-learn, which is not installed: "
            + install_command("sklearn")
        )
    return path
