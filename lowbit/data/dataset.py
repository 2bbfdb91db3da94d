"""Data sets: the interface, a spread-out part of one, and accuracy."""

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


# An evenly spaced subset of a data set.


class SpreadDataset:
    """`count` images of a data set, spread evenly over it: folders are sorted by class, so that its first
    images would be those of the first classes only.

    >>> [SpreadDataset(dataset, 3).name(index) for index in range(3)]  # doctest: +SKIP
    ['digits val #0', 'digits val #120', 'digits val #240']
    """

    def __init__(self, dataset: Dataset, count: int) -> None:
        if count < 1:
            raise LowbitError(f"at least 1 image is needed, got {count}")
        self.classes = dataset.classes
        self.chosen_from = len(dataset)
        self._dataset = dataset
        self._indices = np.arange(min(count, len(dataset))) * len(dataset) // min(count, len(dataset))

    def __len__(self) -> int:
        return len(self._indices)

    def label(self, index: int) -> int:
        return self._dataset.label(int(self._indices[index]))

    def name(self, index: int) -> str:
        return self._dataset.name(int(self._indices[index]))

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> np.ndarray:
        return self._dataset.image(int(self._indices[index]), at_least)


# Top-k accuracy, defined once for training, evaluation and every engine.


def topk_hits(logits: np.ndarray, labels: np.ndarray, topk: tuple[int, ...]) -> np.ndarray:
    """How many samples have their label among the k highest logits, for each k.

    >>> topk_hits(np.array([[0.1, 0.7, 0.2]]), np.array([2]), (1, 2))
    array([0., 1.])
    """
    return topk_right(logits, labels, topk).sum(axis=1).astype(np.float64)


def topk_right(logits: np.ndarray, labels: np.ndarray, topk: tuple[int, ...]) -> np.ndarray:
    """Whether each sample has its label among the k highest logits: a row for each k.

    Of equal logits the one with the lower index comes first, so that a dead network, whose outputs are all
    equal, is right as often as chance has it and not always.
    """
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    # `not <=` instead of `>`: a NaN counts as above everything, so a broken output is never a hit.
    above = ~(logits <= own)
    tied_before = (logits == own) & (np.arange(logits.shape[1]) < labels[:, None])
    place = (above | tied_before).sum(axis=1)
    return place < np.array(topk, np.int64)[:, None]
