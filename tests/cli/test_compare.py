"""`lowbit compare`."""

from __future__ import annotations

import json

from tests.report.fake_run import write_run


def test_runs_stand_side_by_side(run, tmp_path):
    runs = [write_run(tmp_path / "one", epochs=2), write_run(tmp_path / "two", epochs=3, seed=5)]
    found = run("lowbit", "compare", *runs)
    lines = {line.split("  ")[0]: line.split() for line in found.out.splitlines()}
    assert lines["epochs"] == ["epochs", "2", "3"]
    assert lines["Global.epochs"] == ["Global.epochs", "2", "3"]
    assert lines["Global.seed"] == ["Global.seed", "0", "5"]
    assert lines["same class, onnxruntime"][-4:] == ["99.50", "%", "99.50", "%"]
    as_json = json.loads(run("lowbit", "compare", *runs, "--json").out)
    assert as_json["figures"]["two"]["epochs"] == "3"
    assert as_json["config"]["Global.seed"] == ["0", "5"]


def test_one_run_is_nothing_to_compare(run, tmp_path):
    folder = write_run(tmp_path / "one")
    assert "two runs or more" in run("lowbit", "compare", folder).error
