"""analysis.json."""

from __future__ import annotations

import pytest

from lowbit.analysis.store import Store
from lowbit.errors import LowbitError


def _store(path, **more) -> Store:
    return Store(path, **{"checkpoint": "best.lowbit", "digest": "d", "settings": {"images": 3}} | more)


def test_an_entry_is_found_by_digest_and_settings_alone(tmp_path):
    file = tmp_path / "analysis.json"
    _store(file).save(title="one")
    assert _store(file).load()["title"] == "one"
    assert _store(file, digest="e").load() is None
    assert _store(file, settings={"images": 4}).load() is None


def test_other_checkpoints_keep_theirs(tmp_path):
    file = tmp_path / "analysis.json"
    _store(file).save(title="one")
    _store(file, checkpoint="latest.lowbit", digest="f").save(title="two")
    assert _store(file).load()["title"] == "one"


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path):
    file = tmp_path / "analysis.json"
    file.write_text("{")
    with pytest.raises(LowbitError, match="remove it"):
        _store(file).load()
