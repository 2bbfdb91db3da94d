"""The tensors of a `.pdiparams` file, and whether they are complete: Paddle's reader runs a file cut short
with whatever is in memory.

The file is a row of tensors. Each has a version (u32), levels of detail (u64, unused: 0), a version again
(u32), the length of a description (i32), the description (protobuf: element type, dimensions), the elements.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Paddle's numbers of element types, and their sizes in bytes.
_SIZES = {0: 1, 1: 2, 2: 4, 3: 8, 4: 2, 5: 4, 6: 8, 20: 1, 21: 1, 22: 2, 23: 8, 24: 16, 32: 1, 33: 1}
_SMALL_INTEGERS = (20, 21)  # uint8, int8


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's elements are in the file, and what they are."""

    kind: int
    start: int
    size: int

    @property
    def is_8_bit(self) -> bool:
        """The elements are integers of 8 bits."""
        return self.kind in _SMALL_INTEGERS


def is_complete(path: Path) -> bool:
    """Whether every tensor of the file has all its elements and nothing follows the last one."""
    end = 0
    try:
        for tensor in stored_tensors(path):
            end = tensor.start + tensor.size
    except ValueError:
        return False
    return end == os.path.getsize(path) and end > 0


def stored_tensors(path: Path) -> Iterator[StoredTensor]:
    """The tensors in the order of the file; ValueError where the file is something else."""
    length, position = os.path.getsize(path), 0
    with path.open("rb") as file:
        while position < length:
            file.seek(position)
            try:
                _version, levels, _version_again, described = struct.unpack("<IQIi", file.read(20))
                if levels or described < 0:
                    raise ValueError("not a tensor")
                kind, size = _description(file.read(described))
            except (struct.error, KeyError, IndexError) as error:
                raise ValueError("not a tensor") from error
            yield StoredTensor(kind, position + 20 + described, size)
            position += 20 + described + size


def _description(description: bytes) -> tuple[int, int]:
    """Element type and bytes of a tensor, from the protobuf fields 1 (type) and 2 (dimensions)."""
    kind, dimensions, position = None, [], 0
    while position < len(description):
        field, position = _varint(description, position)
        value, position = _varint(description, position)
        if field == 1 << 3:
            kind = value
        elif field == 2 << 3:
            dimensions.append(value)
        else:
            raise KeyError(field)
    return kind, math.prod(dimensions) * _SIZES[kind]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] & 0x80:
        value |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | data[position] << shift, position + 1
