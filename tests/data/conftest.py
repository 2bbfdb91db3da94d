"""The data set that several tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pictures import encoded, picture


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """train/ with cat (3), dog (2) and emu (1), val/ with cat (1) and emu (1)."""
    for split, counts in (("train", {"cat": 3, "dog": 2, "emu": 1}), ("val", {"cat": 1, "emu": 1})):
        for name, count in counts.items():
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                data = encoded(picture(), "JPEG", quality=95)
                (tmp_path / split / name / f"{number}.jpg").write_bytes(data)
    return tmp_path
