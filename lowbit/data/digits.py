"""The 1,797 handwritten digits inside the scikit-learn package: real data that needs no network."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from lowbit.data.dataset import ArrayDataset
from lowbit.errors import LowbitError
from lowbit.extras import install_command

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
