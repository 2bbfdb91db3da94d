"""A part of a data set that stands for the whole: images at even distances."""

from __future__ import annotations

import numpy as np

from lowbit.data.dataset import Dataset
from lowbit.errors import LowbitError


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
