"""Digests inside of files: a flipped byte, a zeroed block or a cut is found when the file is read.

A weights file (`.pdparams`, `.pdopt`), an `.onnx` file and an `inference.yml` end in a trailer that holds the
BLAKE2b digest of all bytes before it. Other programs ignore the trailer: a pickle ends before it, in YAML
it is a comment, and in ONNX one more entry of the model's metadata. (A `.lowbit` file cannot have anything
behind its tensors, its digest is in the header; see `lowbit/training/checkpoint.py`.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lowbit.errors import LowbitError

DIGITS = 64  # of a digest, in hexadecimal


@dataclass(frozen=True)
class Trailer:
    """The bytes around the digest. One flipped byte leaves one of the two intact, so the trailer is found."""

    before: bytes
    after: bytes
    opening: bytes = b""  # a file that begins with this has lost its trailer if it has none

    @property
    def length(self) -> int:
        return len(self.before) + DIGITS + len(self.after)


PICKLE = Trailer(b"\nlowbit digest blake2b ", b" of all bytes before\n")
TEXT = Trailer(
    b"# lowbit digest blake2b ",
    b" of all lines before\n",
    opening=b"# Written by lowbit. After an edit: lowbit digest --accept FILE\n",
)


def _onnx_trailer() -> Trailer:
    """A protobuf field that is added to a serialized ModelProto: one entry (key, value) of metadata_props."""
    key, after = b"lowbit digest blake2b", b" of all bytes before"
    value_length = DIGITS + len(after)
    entry = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([value_length])
    return Trailer(b"\x72" + bytes([len(entry) + value_length]) + entry, after)  # 0x72: field 14, bytes


ONNX = _onnx_trailer()
TRAILERS = {".pdparams": PICKLE, ".pdopt": PICKLE, ".onnx": ONNX, ".yml": TEXT}


def digest(parts: Iterable[bytes | memoryview]) -> str:
    """The BLAKE2b digest (256 bits) of the parts, one after the other.

    >>> digest([b"abc"])[:16]
    'bddd813c63423972'
    """
    state = hashlib.blake2b(digest_size=DIGITS // 2)
    for part in parts:
        state.update(part)
    return state.hexdigest()


def add_digest(content: bytes, trailer: Trailer) -> bytes:
    """The content with its trailer.

    >>> content = add_digest(b"weights", PICKLE)
    >>> without_digest(content, PICKLE, Path("x.pdparams"))
    b'weights'
    """
    content = trailer.opening + content.removeprefix(trailer.opening)
    return content + trailer.before + digest([content]).encode() + trailer.after


def has_digest(content: bytes, trailer: Trailer) -> bool:
    """Whether the content ends in a trailer, damaged or not."""
    return content.endswith(trailer.after) or trailer.before in content[-2 * trailer.length :]


def without_digest(content: bytes, trailer: Trailer, path: Path) -> bytes:
    """The content without its trailer, which must fit; content without a trailer is returned as it is."""
    if not has_digest(content, trailer):
        if trailer.opening and content.startswith(trailer.opening):
            raise damaged(path)
        return content
    end = len(content) - trailer.length
    found = content[end + len(trailer.before) :][:DIGITS]
    inner = content[: max(end, 0)]
    whole = content[end:].startswith(trailer.before) and content.endswith(trailer.after)
    if end < 0 or not whole or found != digest([inner]).encode():
        raise damaged(path)
    return inner


def damaged(path: Path) -> DamagedFile:
    """The error about a file whose digest does not fit."""
    return DamagedFile(
        f"{path} is damaged, or was changed after lowbit wrote it: its digest does not fit. Take another "
        f"copy of it; if you changed it on purpose, accept it with: lowbit digest --accept {path}"
    )


class DamagedFile(LowbitError):
    """A file that is not what was written: cut short, overwritten, or with flipped bits."""
