"""What is read out of a run folder."""

from __future__ import annotations

import json

import pytest

from lowbit.errors import LowbitError
from lowbit.report import open_run, open_runs, write_report
from tests.support.fake_run import write_run


def test_points_leave_out_what_is_no_number_and_a_cut_line(tmp_path):
    folder = write_run(tmp_path / "run", epochs=2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "eval", "step": 30, "epoch": 2, "top1": None}) + "\n")
        file.write('{"kind": "eval", "st')
    run = open_run(folder)
    assert [epoch for epoch, _ in run.points("eval", "top1")] == [1, 2]
    assert run.precision == "W4A4G4"
    assert (run.full_weight_bytes, run.weight_bytes) == (3 * 16 * 16 * 9 * 4, 3 * 16 * 16 * 9 // 2)


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    folders = [write_run(tmp_path / parent / "run", epochs=1) for parent in "ab"]
    other = write_run(tmp_path / "other", epochs=1)
    assert [run.name for run in open_runs([*folders, other])] == ["a/run", "b/run", "other"]
    with pytest.raises(LowbitError, match="twice"):
        open_runs([other, other])


def test_what_is_no_run_is_an_error(tmp_path):
    with pytest.raises(LowbitError, match=r"no config\.yaml"):
        open_run(tmp_path)
    folder = write_run(tmp_path / "run", epochs=1)
    (folder / "verify.json").write_text("{")
    with pytest.raises(LowbitError, match=r"verify\.json"):
        open_run(folder)


def test_folders_may_be_strings_and_the_page_goes_to_the_last_run(tmp_path):
    folders = [str(write_run(tmp_path / name)) for name in ("one", "two")]
    assert [run.name for run in open_runs(folders)] == ["one", "two"]
    write_report(folders)
    assert "<html" in (tmp_path / "two" / "report.html").read_text("utf-8")
