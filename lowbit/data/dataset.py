"""What a data set is to the rest of lowbit, and the data set that sits in memory."""

from __future__ import annotations

import warnings
from typing import Protocol

import numpy as np

from lowbit.errors import LowbitError


class BadImageError(LowbitError):
    """An image that is missing, empty or damaged; `name` is the file, `reason` what is wrong with it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}; replace the file or take it out of the data set")
        self.name = name
        self.reason = reason


class Dataset(Protocol):
    """Labelled images by index; any object with these five members can be trained on."""

    classes: list[str]  # names; the index is the label

    def __len__(self) -> int: ...

    def label(self, index: int) -> int: ...

    def name(self, index: int) -> str:
        """The file's name, or "cifar10 train #17": what messages call the image."""

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> np.ndarray:
        """HWC uint8 RGB. `at_least` (height, width) allows a smaller version that is still that large."""


class ArrayDataset:
    """A data set that sits in memory: images [N, H, W, 3] or [N, H, W] uint8, labels [N]."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: list[str], title: str) -> None:
        if len(images) != len(labels):
            raise LowbitError(f"{title}: {len(images)} images but {len(labels)} labels; get the files again")
        if len(images) == 0:
            raise LowbitError(f"{title}: holds no images; get the files again")
        if 0 in images.shape:
            height, width = images.shape[1:3]
            raise LowbitError(f"{title}: its images are {width}x{height} pixels; get the files again")
        wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
        if wrong.size:
            raise LowbitError(
                f"{title}: image #{wrong[0]} has label {labels[wrong[0]]}, outside 0..{len(classes) - 1}; "
                "the file is damaged or of another data set"
            )
        self.classes = classes
        self.title = title
        self._images = images
        self._labels = labels
        warn_if_one_class(title, len(np.unique(labels)))

    def __len__(self) -> int:
        return len(self._images)

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def name(self, index: int) -> str:
        return f"{self.title} #{index}"

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> np.ndarray:
        image = self._images[index]
        return image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)


def warn_if_one_class(title: str, distinct: int) -> None:
    """Training on one class is possible and nearly always a mistake: say so, and go on."""
    if distinct == 1:
        warnings.warn(f"{title}: all images have one class; there is nothing to tell apart", stacklevel=3)
