"""Files that are either wholly there or not there at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from lowbit.errors import LowbitError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a temporary neighbour, then moves it into place: a crash leaves the old file.

    >>> write_atomically(Path("metrics.txt"), lambda temporary: temporary.write_text("0.91"))
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        _flush_to_disk(temporary)
        os.replace(temporary, path)
        _flush_to_disk(path.parent)
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        kept = "; the previous one is untouched" if path.exists() else ""
        raise LowbitError(f"cannot write {path}: {reason}{kept}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    """Without this a power cut could leave the new name with the old, or no, content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
