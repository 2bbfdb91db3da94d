from __future__ import annotations

from pathlib import Path

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc import read_result, results_folder
from lowbit.tipc.result_files import append_status, status_line, write_result
from lowbit.tipc.step import ChainPlan
from tests.tipc.results import FULL, chain, step


def test_status_lines():
    lines = [status_line(one, "resnet18") for one in FULL.steps]
    assert lines == [
        " Run successfully with command - resnet18 - python a.py !  ",
        " Run failed with command - resnet18 - python b.py !  ",
        " Skipped (needs card 0) command - resnet18 - python c.py !  ",
        " Not run (needs b, which failed) command - resnet18 - python d.py !  ",
    ]


def test_each_config_has_its_own_results(tmp_path):
    for name in ("one", "two"):
        write_result(chain(step(name), root=str(tmp_path), config=f"configs/{name}.txt"))
    for name in ("one", "two"):
        found = read_result(results_folder(tmp_path, "./out", f"elsewhere/{name}.txt"))
        assert found.steps[0].name == name
    assert sorted(path.name for path in (tmp_path / "out/one").iterdir()) == ["results.json", "results.xml"]


def test_status_lines_are_appended(tmp_path):
    head = {"config": "c", "layout": 32, "model_name": "m", "mode": "whole_infer"}
    plan = ChainPlan(**head, root=tmp_path, output="./out", steps=())
    for line in ("one", "two"):
        append_status(plan, line)
    assert (tmp_path / "out/results_python.log").read_text("utf-8") == "one\ntwo\n"


def test_no_results(tmp_path):
    with pytest.raises(LowbitError, match="has not been run in this mode yet; use lowbit tipc run"):
        read_result(tmp_path)
    (tmp_path / "results.json").write_text("{", "utf-8")
    with pytest.raises(LowbitError, match="cannot be read"):
        read_result(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "out").write_text("a file", "utf-8")
    with pytest.raises(LowbitError, match="cannot create"):
        write_result(chain(step("a"), root=str(tmp_path)))
    head = {"config": "c", "layout": 32, "model_name": "m", "mode": "whole_infer"}
    with pytest.raises(LowbitError, match="cannot write"):
        append_status(ChainPlan(**head, root=Path(tmp_path), output="./out", steps=()), "x")
