"""Images on disk: class folders and list files, and finding out which layout a folder has."""

from __future__ import annotations

import os
import tarfile
import tempfile
import warnings
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from lowbit.data.dataset import Dataset, warn_if_one_class
from lowbit.data.decode import EXTENSIONS, read_image
from lowbit.data.formats import ARCHIVES, FOLDERS, find_cifar10, find_idx, open_cifar10, open_digits, open_idx
from lowbit.errors import LowbitError, did_you_mean
from lowbit.files import open_regular


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


# List files: one `path label` per line, as PaddleClas's `train_list.txt`.


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


# Opening a data set of any known layout.


Split = Literal["train", "val"]


def open_dataset(
    path: str | Path, split: Split, *, num_classes: int | None = None, classes: list[str] | None = None
) -> Dataset:
    """The training or validation images at `path`.

    `path` is a folder with list files (`train_list.txt`), class folders (`train/`, `val/`), CIFAR-10 or
    idx files, a .tar of such a folder (`lite_data.tar`), a CIFAR-10 archive, or the word `digits` for the
    handwritten digits of scikit-learn. With `num_classes`, labels that a model of that many classes cannot
    have are an error. `classes` are a trained model's: class folders get their labels by name, whichever of
    them are there, and list files have that many classes, whatever their highest label is.

    >>> open_dataset("digits", "val").classes[:3]
    ['0', '1', '2']
    """
    if split not in get_args(Split):
        raise LowbitError(f'no split "{split}", {did_you_mean(split, get_args(Split))}')
    try:
        dataset = _open(Path(path), split, num_classes, classes)
    except OSError as error:  # no permission, a name too long
        raise LowbitError(f"{error.filename or path}: cannot be read ({error.strerror})") from error
    if num_classes is not None and len(dataset.classes) > num_classes:
        raise LowbitError(
            f"{path}: {len(dataset.classes)} classes, but the model has {num_classes}; "
            f"set its number of classes (class_num) to {len(dataset.classes)}"
        )
    return dataset


def _open(path: Path, split: Split, num_classes: int | None, classes: list[str] | None) -> Dataset:
    if not path.exists():
        if str(path) == "digits":
            return open_digits(split)
        raise LowbitError(f"{path}: no such folder; give the folder that holds the data, or `digits`")
    if find_cifar10(path):
        return open_cifar10(path, split)
    if path.is_file() and path.suffix == ".tar":
        return _open_tar(path, split, num_classes, classes)
    if path.is_file():
        raise LowbitError(
            f"{path}: not a folder, nor one of {', '.join(ARCHIVES)}, nor a .tar; "
            "extract other archives first and give the folder"
        )
    if (path / f"{split}_list.txt").is_file():
        return _open_list(path, split, num_classes, classes)
    if class_folders(path / split):
        if classes is None and split != "train":
            classes = class_folders(path / "train") or None
        return FolderDataset(path / split, classes)
    splits = any((path / name).is_dir() for name in get_args(Split))
    if split == "val" and not splits and any(map(_has_images, path.iterdir())):
        return FolderDataset(path, classes)  # the validation folder itself
    if find_idx(path, split, "images"):
        return open_idx(path, split)
    raise LowbitError(_nothing_found(path, split))


_LARGEST_TAR = 1 << 30  # bytes; a larger one is worth unpacking once, not for every run
_unpacked: dict[tuple[str, int, int], tempfile.TemporaryDirectory[str]] = {}


def _open_tar(path: Path, split: Split, num_classes: int | None, classes: list[str] | None) -> Dataset:
    """A packed folder such as lite_data.tar, unpacked for as long as this process runs."""
    state = path.stat()
    key = (str(path.resolve()), state.st_mtime_ns, state.st_size)
    if key not in _unpacked:
        folder = tempfile.TemporaryDirectory(prefix="lowbit-tar-")
        try:
            with tarfile.open(path) as archive:
                if sum(member.size for member in archive) > _LARGEST_TAR:
                    raise LowbitError(f"{path}: unpacks to more than 1 GiB; extract it and give the folder")
                archive.extractall(folder.name, filter="data")  # nothing outside of it, no devices
        except (tarfile.TarError, OSError) as error:
            why = str(error).splitlines()[0]
            raise LowbitError(
                f"{path}: not a folder, nor a .tar that can be unpacked ({why}); extract other archives "
                "first and give the folder"
            ) from None
        _unpacked[key] = folder
    inside = Path(_unpacked[key].name)
    entries = [entry for entry in inside.iterdir() if not entry.name.startswith(".")]
    if len(entries) == 1 and entries[0].is_dir() and entries[0].name not in get_args(Split):
        inside = entries[0]  # `lite_data/` inside of lite_data.tar
    return _open(inside, split, num_classes, classes)


def _has_images(folder: Path) -> bool:
    return folder.is_dir() and any(file.name.lower().endswith(EXTENSIONS) for file in folder.iterdir())


def _open_list(
    path: Path, split: Split, num_classes: int | None, classes: list[str] | None
) -> ListFileDataset:
    train_list = path / "train_list.txt"
    if classes is not None:  # labels are the model's outputs, whichever of them the lists have
        return ListFileDataset(path / f"{split}_list.txt", classes=classes)
    if num_classes is not None or not train_list.is_file():
        return ListFileDataset(path / f"{split}_list.txt", num_classes=num_classes)
    # Both splits take the classes from the training list, so that they agree.
    paths, labels = read_list(train_list, num_classes)
    classes = _names_from_folders(paths, labels)
    return ListFileDataset(path / f"{split}_list.txt", classes=classes)


def _names_from_folders(paths: list[str], labels: list[int]) -> list[str]:
    """`train/cat/1.jpg 0` names class 0 "cat" if every class has its own folder; else numbers."""
    folders: dict[int, str] = {}
    for path, label in zip(paths, labels, strict=True):
        if folders.setdefault(label, Path(path).parent.name) != Path(path).parent.name:
            folders.clear()
            break
    count = max(labels) + 1
    if len(folders) == count and len(set(folders.values())) == count and "" not in folders.values():
        return [folders[label] for label in range(count)]
    return [str(label) for label in range(count)]


def _nothing_found(path: Path, split: Split) -> str:
    looked_for = (
        f"{split}_list.txt; {split}/<class>/<image>; {', '.join(FOLDERS + ARCHIVES)}; "
        f"{'train' if split == 'train' else 't10k'}-images-idx3-ubyte[.gz]"
    )
    if not any(path.iterdir()):
        return f"{path}: the folder is empty; looked for {looked_for}"
    hint = ""
    if (path / split).is_dir():
        hint = f"; {path / split} has no class folders in it"
    elif class_folders(path):
        found = ", ".join(class_folders(path)[:4])
        hint = f"; it holds the folders {found}: put the class folders into train/ and val/"
    return f"{path}: no {split} images here{hint}. Looked for {looked_for}"
