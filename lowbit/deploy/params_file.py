"""Whether a `.pdiparams` file is complete: Paddle's reader runs a file cut short with whatever is in memory.

The file is a row of tensors. Each has a version (u32), levels of detail (u64, unused: 0), a version again
(u32), the length of a description (i32), the description (protobuf: element type, dimensions), the elements.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

# Paddle's numbers of element types, and their sizes in bytes.
_SIZES = {0: 1, 1: 2, 2: 4, 3: 8, 4: 2, 5: 4, 6: 8, 20: 1, 21: 1, 22: 2, 23: 8, 24: 16, 32: 1, 33: 1}


def is_complete(path: Path) -> bool:
    """Whether every tensor of the file has all its elements and nothing follows the last one."""
    length = os.path.getsize(path)
    position = 0
    try:
        with path.open("rb") as file:
            while position < length:
                file.seek(position)
                _version, levels, _version_again, described = struct.unpack("<IQIi", file.read(20))
                if levels or described < 0:
                    return False
                position += 20 + described + _element_bytes(file.read(described))
    except (struct.error, KeyError, IndexError):
        return False
    return position == length and length > 0


def _element_bytes(description: bytes) -> int:
    """The size of a tensor's elements, from the protobuf fields 1 (type) and 2 (dimensions, one by one)."""
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
    return math.prod(dimensions) * _SIZES[kind]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] & 0x80:
        value |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | data[position] << shift, position + 1
