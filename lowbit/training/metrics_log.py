"""metrics.jsonl, one JSON object a line, and VisualDL's curves when they are wanted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from lowbit.errors import LowbitError
from lowbit.training.files import write_atomically


class MetricsLog:
    """Appends records with their step. On resume, records from after the checkpoint are dropped first,
    so that the file reads like that of an undisturbed run; a run that starts (None) starts a new file."""

    def __init__(self, folder: Path, *, resumed_step: int | None, visualdl: bool | None) -> None:
        path = folder / "metrics.jsonl"
        kept = (
            []
            if resumed_step is None
            else [line for line in _lines(path) if json.loads(line)["step"] <= resumed_step]
        )
        self._path = path
        write_atomically(path, lambda file: file.write_text("".join(f"{line}\n" for line in kept), "utf-8"))
        self._curves = _curves(folder / "vdl", required=bool(visualdl)) if visualdl is not False else None

    def write(self, kind: str, step: int, **values: Any) -> None:
        """One record: what it is (`train`, `eval`, `baseline`), when, and its values."""
        record = {name: None if _is_broken(value) else value for name, value in values.items()}
        line = json.dumps({"kind": kind, "step": step, **record}, allow_nan=False)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            raise LowbitError(f"cannot write {self._path}: {error.strerror}") from error
        if self._curves:
            for name, value in values.items():
                if isinstance(value, float):
                    self._curves.add_scalar(tag=f"{kind}/{name}", step=step, value=value)

    def close(self) -> None:
        """Flushes everything to the files."""
        if self._curves:
            self._curves.close()


def _is_broken(value: Any) -> bool:
    """NaN and Inf are no JSON; null is, and says as much."""
    return isinstance(value, float) and not math.isfinite(value)


def _lines(path: Path) -> list[str]:
    """The complete lines of a log; a crash may have cut the last one."""
    if not path.is_file():
        return []
    lines = path.read_text("utf-8").split("\n")
    return [line for line in lines[:-1] if line.endswith("}")]


def _curves(folder: Path, *, required: bool) -> Any:
    """VisualDL's writer; None when it is not installed and nobody insisted on it."""
    try:
        from visualdl import LogWriter
    except ImportError:
        if not required:
            return None
        raise LowbitError(
            "Global.use_visualdl is on, but VisualDL is not installed: pip install 'lowbit[curves]', "
            "or leave the key out (metrics.jsonl is written in any case)"
        ) from None
    return LogWriter(logdir=str(folder))
