"""The outputs of a step: the files it has written, and the values in its log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lowbit.errors import LowbitError
from lowbit.safe_pickle import RefusedPickle, load_arrays
from lowbit.tipc.result import Check

_ROWS = (list, tuple)
Snapshot = dict[Path, tuple[int, int, int]]  # time, size and identity of every file


def take_snapshot(folder: Path) -> Snapshot:
    """The files in a folder and its subfolders; none if it does not exist."""
    found: Snapshot = {}
    for path in folder.rglob("*") if folder.is_dir() else ():
        try:
            state = path.stat()
        except OSError:  # a link into nowhere, or gone meanwhile
            continue
        if path.is_file():
            found[path] = (state.st_mtime_ns, state.st_size, state.st_ino)
    return found


def changed_files(before: Snapshot, folder: Path) -> list[Path]:
    """The files that were written since a snapshot of the same folder, sorted."""
    return sorted(path for path, state in take_snapshot(folder).items() if before.get(path) != state)


def find_weights(leaves: Path) -> Path | None:
    """The weights that a config's `train_model_name` refers to.

    A file with or without `.pdparams`, or a folder that has one such file.
    """
    for path in (leaves, leaves.with_name(f"{leaves.name}.pdparams")):
        if path.is_file():
            return path
    inside = sorted(leaves.glob("*.pdparams")) if leaves.is_dir() else []
    return inside[0] if len(inside) == 1 else None


def check_checkpoint(leaves: Path, before: Snapshot, folder: Path) -> tuple[Check, Path | None]:
    """Whether training wrote its checkpoint, and the file."""
    found = find_weights(leaves)
    if found is None:
        return Check("checkpoint", False, f"no {leaves.name} in {leaves.parent}"), None
    if found.resolve().is_relative_to(folder.resolve()) and found not in changed_files(before, folder):
        return Check("checkpoint", False, f"{found.name} is of an earlier run: this one wrote none"), None
    return Check("checkpoint", True, f"{found.name}, {found.stat().st_size / 1e6:.1f} MB"), found


def check_weights(path: Path) -> Check:
    """Whether the file can be read and its numbers are finite. Nothing in it is executed."""
    if path.suffix != ".pdparams":
        return Check("weights", None, f"{path.name} is not a .pdparams file")
    try:
        broken, count = _broken(load_arrays(path))
    except RefusedPickle as error:
        return Check("weights", None, str(error))
    except LowbitError as error:
        return Check("weights", False, str(error))
    if broken:
        return Check("weights", False, f"NaN or Inf in {', '.join(broken[:3])} of {path.name}")
    if not count:
        return Check("weights", False, f"{path.name} has no weights in it")
    return Check("weights", True, f"{count} arrays, all finite")


def _broken(value: Any, name: str = "") -> tuple[list[str], int]:
    """The names of arrays that hold NaN or Inf, and how many arrays there are."""
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint16:  # how Paddle stores bfloat16: all ones in the exponent are NaN or Inf
            fine = bool(((value & 0x7F80) != 0x7F80).all())
        else:
            fine = value.dtype.kind not in "fc" or bool(np.isfinite(value).all())
        return ([] if fine else [name or "the array"]), 1
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, _ROWS) else ()
    broken: list[str] = []
    count = 0
    for key, inner in items:
        more, arrays = _broken(inner, f"{name}.{key}" if name else str(key))
        broken, count = broken + more, count + arrays
    return broken, count


_NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?)"
_LOSS = re.compile(rf"\bloss\b\s*[:=]\s*({_NUMBER})", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch\b\W{0,3}(\d+)", re.IGNORECASE)
_EVALUATION = re.compile(r"\[Eval\]", re.IGNORECASE)
_TOP1 = re.compile(rf"\btop1\b\s*[:=]\s*({_NUMBER})", re.IGNORECASE)
_ACCURACY = re.compile(rf"\*\s+Acc@1\s+({_NUMBER})", re.IGNORECASE)
_CLASS = re.compile(rf"(?:image_name:\s*(.*?),\s*)?class_id:\s*(\d+),\s*prob:\s*({_NUMBER})", re.IGNORECASE)
# PaddleClas: `demo.jpg: class id(s): [8, 7], score(s): [0.91, 0.05]`, best first.
_CLASSES = re.compile(
    rf"(?:(\S+):\s*)?class id\(s\):\s*\[(\d+)[^\]]*\],\s*score\(s\):\s*\[({_NUMBER})", re.IGNORECASE
)


@dataclass(frozen=True)
class PrintedClass:
    """The class of an image; `image` is None if the line does not name it."""

    image: str | None
    class_id: int
    probability: float


def last_loss(log: Path) -> float | None:
    """The last loss that training printed; None where there is none.

    A line may have several, such as PaddleClas's `CELoss: 2.3, loss: 2.3`: its last one is the sum.
    """
    last = None
    for _, loss in _losses(log):
        last = loss
    return last


def epoch_losses(log: Path) -> list[float]:
    """The mean of the losses that training printed in each epoch, in the order of the epochs.

    Lines such as `[Epoch 0, iter: 4] … loss: 1.3` and `[Train][Epoch 1/2][Iter: 0/4]… loss: 1.3` count.
    """
    found: dict[int, list[float]] = {}
    for epoch, loss in _losses(log):
        if epoch is not None:
            found.setdefault(epoch, []).append(loss)
    return [sum(losses) / len(losses) for _, losses in sorted(found.items())]


def _losses(log: Path) -> Iterator[tuple[int | None, float]]:
    """The losses of training in the order of the log, each with its epoch where its line names one."""
    for line in _lines(log):
        if (values := _LOSS.findall(line)) and not _EVALUATION.search(line):
            epoch = _EPOCH.search(line)
            yield (int(epoch[1]) if epoch else None), float(values[-1])


def last_accuracy(log: Path) -> float | None:
    """The last top-1 accuracy: ` * Acc@1 0.564 Acc@5 0.790`, or PaddleClas's `[Eval]… top1: 0.564`."""
    found = None
    for line in _lines(log):
        match = _ACCURACY.search(line) or (_EVALUATION.search(line) and _TOP1.search(line))
        if match:
            found = float(match[1])
    return found


def class_count(root: Path, arguments: Sequence[str]) -> int | None:
    """The number of classes of a command's data or config; None if neither says so.

    The data is an option's folder with `train/CLASS/`; the config is the file after `-c`, whose
    `Arch.class_num` an `-o Arch.class_num=…` overrides.
    """
    for word in reversed(arguments):
        value = word.partition("=")[2]
        if word.startswith("Arch.class_num=") and value.isdigit():
            return int(value)
        if value and (root / value / "train").is_dir():
            folders = sum(path.is_dir() for path in (root / value / "train").iterdir())
            return folders or None
    for option, value in pairwise(arguments):
        if option == "-c":
            return _configured_classes(root / value)
    return None


def _configured_classes(config: Path) -> int | None:
    try:
        arch = (yaml.safe_load(config.read_text("utf-8")) or {}).get("Arch") or {}
        return arch["class_num"] if isinstance(arch["class_num"], int) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return None  # a config of a kind that we do not know says nothing


def printed_classes(log: Path) -> list[PrintedClass]:
    """Every class and probability that inference printed, in order."""
    return [
        PrintedClass(match[1], int(match[2]), float(match[3]))
        for line in _lines(log)
        if (match := _CLASS.search(line) or _CLASSES.search(line))
    ]


def _lines(log: Path) -> Iterator[str]:
    """Line by line: the log of a whole training may be large."""
    with log.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            yield line[:10_000]
