"""Files: opening only regular ones, and writing so that a reader never sees half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from lowbit.errors import LowbitError


def open_regular(path: str | Path, *, most: int | None = None) -> BinaryIO:
    """The file opened for reading bytes; an OSError for anything but a regular file of at most `most` bytes.

    A FIFO would block until someone writes, `/dev/zero` never ends; both may hide behind a symbolic link or
    the name of an image. A NUL character in the path, too, is an OSError here, and not a ValueError.

    with open_regular("cat.jpg", most=2**30) as file:
        data = file.read()
    """
    if "\0" in str(path):
        raise _error(path, "its name has a NUL character in it")
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise _error(path, f"it is {_kind(found.st_mode)}, not a regular file")
    if most is not None and found.st_size > most:
        raise _error(path, f"{found.st_size} bytes are too many, at most {most} are expected")
    # Not blocking: if the file was replaced by a FIFO in between, reading gives nothing.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def _error(path: str | Path, reason: str) -> OSError:
    return OSError(22, reason, str(path))  # EINVAL


def _kind(mode: int) -> str:
    kinds = {
        stat.S_ISDIR: "a folder",
        stat.S_ISFIFO: "a FIFO (named pipe)",
        stat.S_ISCHR: "a device",
        stat.S_ISBLK: "a device",
        stat.S_ISSOCK: "a socket",
    }
    return next((words for test, words in kinds.items() if test(mode)), "something else")


# Atomic writes.


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the same folder, then rename it: a crash leaves the old file.

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
            f"cannot write {path}: {error.object[error.start : error.end]!r} cannot be encoded in UTF-8"
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
    """Not from `tempfile`, whose files only their owner may read."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _flush_to_disk(path: Path) -> None:
    """Without this, a power failure could leave the new name with old or no content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
