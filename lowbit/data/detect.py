"""Opens a data set of any layout that lowbit knows, by looking at what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from lowbit.data.cifar10 import ARCHIVES, FOLDERS, find_cifar10, open_cifar10
from lowbit.data.dataset import Dataset
from lowbit.data.decode import EXTENSIONS
from lowbit.data.digits import open_digits
from lowbit.data.folder import FolderDataset, class_folders
from lowbit.data.idx import find_idx, open_idx
from lowbit.data.list_file import ListFileDataset, read_list
from lowbit.errors import LowbitError, did_you_mean

Split = Literal["train", "val"]


def open_dataset(
    path: str | Path, split: Split, *, num_classes: int | None = None, classes: list[str] | None = None
) -> Dataset:
    """The training or validation images at `path`.

    `path` is a folder with list files (`train_list.txt`), class folders (`train/`, `val/`), CIFAR-10 or
    idx files, a CIFAR-10 archive, or the word `digits` for the handwritten digits of scikit-learn. With
    `num_classes`, labels that a model of that many classes cannot have are an error. `classes` are a trained
    model's: class folders get their labels by name, whichever of them are there.

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
    if path.is_file():
        raise LowbitError(
            f"{path}: not a folder, nor one of {', '.join(ARCHIVES)}; "
            "extract other archives first and give the folder"
        )
    if (path / f"{split}_list.txt").is_file():
        return _open_list(path, split, num_classes)
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


def _has_images(folder: Path) -> bool:
    return folder.is_dir() and any(file.name.lower().endswith(EXTENSIONS) for file in folder.iterdir())


def _open_list(path: Path, split: Split, num_classes: int | None) -> ListFileDataset:
    train_list = path / "train_list.txt"
    if not train_list.is_file():
        return ListFileDataset(path / f"{split}_list.txt", num_classes=num_classes)
    # Both splits take the classes from the training list, so that they agree.
    paths, labels = read_list(train_list, num_classes)
    classes = _names_from_folders(paths, labels)
    return ListFileDataset(path / f"{split}_list.txt", classes=classes)


def _names_from_folders(paths: list[str], labels: list[int]) -> list[str]:
    """`train/cat/1.jpg 0` names class 0 "cat" if every class has a folder of its own; else numbers."""
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
