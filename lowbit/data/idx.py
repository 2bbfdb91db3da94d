"""MNIST and Fashion-MNIST: idx files, packed with gzip or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from lowbit.data.dataset import ArrayDataset
from lowbit.errors import LowbitError

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
