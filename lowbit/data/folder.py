"""Images in class folders: `train/cat/1.jpg`."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np

from lowbit.data.dataset import warn_if_one_class
from lowbit.data.decode import EXTENSIONS, read_image
from lowbit.errors import LowbitError, did_you_mean


class FolderDataset:
    """The images of one folder of class folders; labels number the classes in the order of their names.

    `classes` fixes names and labels; give the training set's to the validation set, so that a class
    without validation images does not shift the labels of the others.

    >>> FolderDataset("flowers/train").classes  # doctest: +SKIP
    ['daisy', 'rose', 'tulip']
    """

    def __init__(self, root: str | Path, classes: list[str] | None = None) -> None:
        self.root = Path(root)
        found = class_folders(self.root)
        if not found:
            raise LowbitError(f"{root}: no class folders; expected {root}/<class>/<image>.jpg")
        self.classes = found if classes is None else classes
        self._paths: list[str] = []
        self._labels: list[int] = []
        for name in found:
            if name not in self.classes:
                raise LowbitError(
                    f'{self.root / name}: "{name}" is not one of the classes trained on, '
                    f"{did_you_mean(name, self.classes)}"
                )
            self._add(name, classes is None)
        if not self._paths:
            raise LowbitError(f"{root}: no images in the class folders; looked for {', '.join(EXTENSIONS)}")
        warn_if_one_class(str(root), len(set(self._labels)))

    def _add(self, name: str, is_training: bool) -> None:
        paths = sorted(_images_under(str(self.root / name)))
        if not paths and is_training:
            warnings.warn(f"{self.root / name}: no images; the class can never be learned", stacklevel=3)
        self._paths += paths
        self._labels += [self.classes.index(name)] * len(paths)

    def __len__(self) -> int:
        return len(self._paths)

    def label(self, index: int) -> int:
        return self._labels[index]

    def name(self, index: int) -> str:
        return self._paths[index]

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> np.ndarray:
        return read_image(self._paths[index], at_least)


def class_folders(root: Path) -> list[str]:
    """The names of the folders in `root`, sorted; hidden ones are tools' and not classes."""
    if not root.is_dir():
        return []
    return sorted(
        entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")
    )


def _images_under(folder: str) -> list[str]:
    paths: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                paths += _images_under(entry.path)
            elif entry.name.lower().endswith(EXTENSIONS):
                paths.append(entry.path)
    return paths
