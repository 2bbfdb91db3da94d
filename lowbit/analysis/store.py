"""analysis.json: what was measured for a checkpoint, so that nothing is measured twice."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from lowbit.errors import LowbitError
from lowbit.files import write_atomically

FORMAT = 3
FILE = "analysis.json"


def folder_of(checkpoint: Path) -> Path:
    """The run of a checkpoint, or the folder of one that is not in a run folder.

    >>> folder_of(Path("runs/w4a4/checkpoints/best.lowbit"))
    PosixPath('runs/w4a4')
    """
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent


class Store:
    """One entry of analysis.json, found by the checkpoint's digest and all settings that matter."""

    def __init__(self, path: Path, *, checkpoint: str, digest: str, settings: dict[str, Any]) -> None:
        self._path, self._checkpoint, self._digest = path, checkpoint, digest
        self._settings = settings
        text = json.dumps({"digest": digest, **settings}, sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()[:16]

    def load(self) -> dict[str, Any] | None:
        """What was kept of the same analysis; None when there is nothing."""
        return self._read().get(self._key)

    def save(self, **values: Any) -> None:
        """Keeps it; analyses of what a checkpoint of the same name was before are dropped."""
        entries = {
            key: entry
            for key, entry in self._read().items()
            if entry["checkpoint"] != self._checkpoint or entry["sha256"] == self._digest
        }
        about = {"checkpoint": self._checkpoint, "sha256": self._digest, "settings": self._settings}
        entries[self._key] = {**about, **values}
        text = json.dumps({"format": FORMAT, "analyses": entries}, allow_nan=False)
        write_atomically(self._path, lambda file: file.write_text(text, "utf-8"))

    def _read(self) -> dict[str, Any]:
        if not self._path.is_file():
            return {}
        try:
            found = json.loads(self._path.read_text("utf-8"))
            entries = found["analyses"] if found["format"] == FORMAT else {}
            for entry in entries.values():
                if not isinstance(entry["checkpoint"], str) or not isinstance(entry["sha256"], str):
                    raise ValueError("an entry without its checkpoint")
            return entries
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LowbitError(f"cannot read {self._path} ({error}): remove it to analyze again") from None
