"""Images named by a text file with one `path label` per line, as PaddleClas's `train_list.txt`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lowbit.data.dataset import warn_if_one_class
from lowbit.data.decode import read_image
from lowbit.errors import LowbitError
from lowbit.files import open_regular

_MOST_CLASSES = 1_000_000  # ImageNet-21k has 21,841; a larger label is a slip, and a model of it fits nowhere


class ListFileDataset:
    """The images that `list_file` names, relative to `image_root` (default: the list's folder).

    With `num_classes`, a label outside it is an error that names the line; without, the labels themselves say
    how many classes there are. `classes` names them; the default is their numbers.

    >>> ListFileDataset("imagenet/val_list.txt", num_classes=1000).name(0)  # doctest: +SKIP
    'imagenet/val/ILSVRC2012_val_00000001.JPEG'
    """

    def __init__(
        self,
        list_file: str | Path,
        image_root: str | Path | None = None,
        *,
        num_classes: int | None = None,
        classes: list[str] | None = None,
    ) -> None:
        self.list_file = Path(list_file)
        self._root = Path(image_root) if image_root is not None else self.list_file.parent
        if classes is not None and num_classes is None:
            num_classes = len(classes)
        self._paths, self._labels = read_list(self.list_file, num_classes)
        count = num_classes if num_classes is not None else max(self._labels) + 1
        self.classes = classes if classes is not None else [str(label) for label in range(count)]
        warn_if_one_class(str(list_file), len(set(self._labels)))

    def __len__(self) -> int:
        return len(self._paths)

    def label(self, index: int) -> int:
        return self._labels[index]

    def name(self, index: int) -> str:
        return str(self._root / self._paths[index])

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> np.ndarray:
        return read_image(self.name(index), at_least)


def read_list(list_file: Path, num_classes: int | None = None) -> tuple[list[str], list[int]]:
    """The paths and labels of a list file; a bad line is an error that names file and line."""
    try:
        with open_regular(list_file) as file:
            lines = file.read().decode("utf-8-sig").splitlines()
    except OSError as error:
        raise LowbitError(
            f"{list_file}: cannot be read ({error.strerror}); it is the list of images, with lines such as "
            "`train/cat/1.jpg 0` (cls_label_path in a config)"
        ) from error
    except UnicodeDecodeError as error:
        raise LowbitError(f"{list_file}: not a text file in UTF-8 ({error.reason})") from error
    paths: list[str] = []
    labels: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        path, label = _parse_line(line, f"{list_file}, line {number}")
        if num_classes is not None and label >= num_classes:
            raise LowbitError(
                f"{list_file}, line {number}: label {label} is outside 0..{num_classes - 1}; "
                f"labels count from 0, and the model has {num_classes} classes (class_num)"
            )
        paths.append(path)
        labels.append(label)
    if not paths:
        raise LowbitError(f"{list_file}: names no images; expected lines such as `train/cat/1.jpg 0`")
    return paths, labels


def _parse_line(line: str, where: str) -> tuple[str, int]:
    # The label is the last word, so that a path may hold spaces.
    parts = line.strip().rsplit(maxsplit=1)
    if len(parts) != 2:
        raise LowbitError(f"{where}: expected `path label`, got `{line.strip()}`")
    path, label = parts
    if not label.isascii() or not label.isdecimal():
        raise LowbitError(f"{where}: the label must be a whole number from 0, got `{label}`")
    label = label.lstrip("0") or "0"  # int() refuses thousands of digits, zeros or not
    if len(label) > len(str(_MOST_CLASSES)) or int(label) >= _MOST_CLASSES:
        raise LowbitError(
            f"{where}: label {label} is too large, the largest is {_MOST_CLASSES - 1}; labels count from 0"
        )
    if "\0" in path:
        raise LowbitError(f"{where}: the path `{path}` has a NUL character in it")
    return path, int(label)
