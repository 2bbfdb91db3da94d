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
    folders = sorted(entry.name for entry in _entries(str(root)) if _is_folder(entry))
    for name in folders:
        try:
            name.encode()  # it becomes the name of a class, in files that are in UTF-8
        except UnicodeEncodeError:
            raise LowbitError(f"{root}: the folder's name {name!r} is not in UTF-8; rename it") from None
    return folders


def _images_under(folder: str, reached: set[tuple[int, int]] | None = None) -> list[str]:
    """The images of a class; `reached` are the folders seen so far, by device and number."""
    reached = set() if reached is None else reached
    paths: list[str] = []
    found = os.stat(folder)
    if (found.st_dev, found.st_ino) in reached:
        raise LowbitError(f"{folder}: a symbolic link to a folder that is read already; remove the link")
    reached.add((found.st_dev, found.st_ino))
    for entry in _entries(folder):
        if _is_folder(entry):
            paths += _images_under(entry.path, reached)
        elif entry.name.lower().endswith(EXTENSIONS):
            paths.append(entry.path)
    return paths


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What a folder holds; hidden files are tools'."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise LowbitError(f"{folder}: cannot be read ({error.strerror})") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a symbolic link to itself; one with the name of an image is a bad image
        return False
