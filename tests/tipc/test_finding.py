from __future__ import annotations

import json
from dataclasses import asdict

from lowbit.tipc import Check
from lowbit.tipc.finding import Expected, Finding, read_finding


def test_what_was_written_comes_back(tmp_path):
    found = Finding(checks=[Check("a", None, "b")], expected=[Expected("i.jpg", [0.5, 0.5])], image_count=3)
    (tmp_path / "f.json").write_text(json.dumps(asdict(found)), "utf-8")
    assert read_finding(tmp_path / "f.json") == found


def test_half_a_file_or_none(tmp_path):
    assert read_finding(tmp_path / "f.json") is None
    (tmp_path / "f.json").write_text('{"checks": [', "utf-8")
    assert read_finding(tmp_path / "f.json") is None
