"""What the logs of a chain's steps say: losses, accuracies, and the classes of images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?)"
_LOSS = re.compile(rf"\bloss\b\s*[:=]\s*({_NUMBER})", re.IGNORECASE)
_ACCURACY = re.compile(rf"\*\s+Acc@1\s+({_NUMBER})", re.IGNORECASE)
_CLASS = re.compile(rf"(?:image_name:\s*(.*?),\s*)?class_id:\s*(\d+),\s*prob:\s*({_NUMBER})", re.IGNORECASE)
# PaddleClas: `demo.jpg: class id(s): [8, 7], score(s): [0.91, 0.05]`, best first.
_CLASSES = re.compile(
    rf"(?:(\S+):\s*)?class id\(s\):\s*\[(\d+)[^\]]*\],\s*score\(s\):\s*\[({_NUMBER})", re.IGNORECASE
)


@dataclass(frozen=True)
class Answer:
    """The class of an image; `image` is None where the line does not name it."""

    image: str | None
    class_id: int
    probability: float


def last_loss(log: Path) -> float | None:
    """The last loss that training printed; None where there is none.

    A line may have several, such as PaddleClas's `CELoss: 2.3, loss: 2.3`: its last one is the sum.
    """
    found = None
    for line in _lines(log):
        if values := _LOSS.findall(line):
            found = float(values[-1])
    return found


def last_accuracy(log: Path) -> float | None:
    """The last top-1 accuracy in the form ` * Acc@1 0.564 Acc@5 0.790`."""
    found = None
    for line in _lines(log):
        if match := _ACCURACY.search(line):
            found = float(match[1])
    return found


def answers(log: Path) -> list[Answer]:
    """Every class and probability that inference printed, in order."""
    return [
        Answer(match[1], int(match[2]), float(match[3]))
        for line in _lines(log)
        if (match := _CLASS.search(line) or _CLASSES.search(line))
    ]


def _lines(log: Path) -> Iterator[str]:
    """Line by line: the log of a whole training may be large."""
    with log.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            yield line[:10_000]
