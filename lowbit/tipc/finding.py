"""What the runner asks the process that opens exported models, and what it gets back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from lowbit.tipc.result import Check


@dataclass(frozen=True, kw_only=True)
class Request:
    """The exported files, the checkpoint that they are of, and images to compare on."""

    program: str | None  # inference.json or .pdmodel, with its .pdiparams beside it
    onnx: str | None
    weights: str | None
    images: str | None
    quantized: bool


@dataclass(frozen=True)
class Expected:
    """What the trained model answers to an image."""

    image: str
    probabilities: list[float]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The checks, and what inference has to print for the first of the images."""

    checks: list[Check]
    expected: list[Expected] = field(default_factory=list)
    image_count: int = 0


def read_finding(path: Path) -> Finding | None:
    """What the process has written; None where it did not get that far."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return Finding(
        checks=[Check(**check) for check in values["checks"]],
        expected=[Expected(**answer) for answer in values["expected"]],
        image_count=values["image_count"],
    )
