"""Opens files of unknown origin: only regular ones, so that reading neither blocks nor goes on for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


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
