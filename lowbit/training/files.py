"""Files that are either wholly there or not there at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from lowbit.errors import LowbitError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a temporary neighbour, then moves it into place: a crash leaves the old file.

    >>> write_atomically(Path("metrics.txt"), lambda temporary: temporary.write_text("0.91"))
    """
    temporary = _neighbour(path)
    try:
        write(temporary)
        _flush_to_disk(temporary)
        os.replace(temporary, path)
        _flush_to_disk(path.parent)
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        kept = "; the previous one is untouched" if os.path.exists(path) else ""
        raise LowbitError(f"cannot write {path}: {reason}{kept}") from error
    except UnicodeEncodeError as error:
        raise LowbitError(
            f"cannot write {path}: {error.object[error.start : error.end]!r} is no character that UTF-8 has"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # in a read-only folder; it must not hide the error above
            temporary.unlink(missing_ok=True)


def link_atomically(path: Path, other: Path) -> None:
    """Makes `other` a second name of the file `path` (a copy where the file system has no links).

    Safe for files of `write_atomically`: it never changes a file, it only puts a new one in its place.
    """
    temporary = _neighbour(other)
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        write_atomically(other, lambda file: shutil.copyfile(path, file))
        return
    os.replace(temporary, other)


def _neighbour(path: Path) -> Path:
    """Not from `tempfile`, whose files nobody but their owner may read."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _flush_to_disk(path: Path) -> None:
    """Without this a power cut could leave the new name with the old, or no, content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
