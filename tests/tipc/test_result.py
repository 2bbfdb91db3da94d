from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc import Status, junit_xml, read_result, results_folder
from lowbit.tipc.result import append_status, log_tail, read_values, status_line, write_result
from lowbit.tipc.steps import ChainPlan
from tests.support.chains import FULL, chain, step


def test_when_a_chain_has_passed():
    good, skipped = step("a"), step("b", Status.SKIPPED)
    assert chain(good, skipped).passed
    assert not chain(skipped).passed  # nothing was shown
    assert not chain().passed
    assert not chain(good, step("c", Status.FAILED)).passed
    assert not chain(good, step("c", Status.NOT_RUN)).passed
    assert not chain(good, finished=False).passed
    assert not chain(good, interrupted=True).passed
    assert not chain(good, unwritten="the disk is full").passed


def test_counts_name_every_status():
    assert FULL.counts == {"passed": 1, "failed": 1, "skipped": 1, "not run": 1}


def test_a_step_is_replaced():
    assert [one.status.value for one in FULL.with_step(1, step("b")).steps[:2]] == ["passed", "passed"]


def test_values_are_json_and_come_back():
    values = json.loads(json.dumps(FULL.values()))
    assert values["passed"] is False and values["counts"]["skipped"] == 1
    assert read_values(values, "r.json") == FULL


@pytest.mark.parametrize("damage", [None, [], {}, {"steps": [{}]}, {**FULL.values(), "more": 1}])
def test_other_values(damage):
    with pytest.raises(LowbitError, match=r"^r\.json is not a result of lowbit tipc run"):
        read_values(damage, "r.json")


def test_what_could_not_be_checked():
    assert FULL.steps[0].unconfirmed == ("weights: no .pdparams",)


def test_every_step_is_a_case(tmp_path):
    (tmp_path / "b.log").write_bytes(b"first\nlast \xff\x07 line\n")
    suite = ET.fromstring(junit_xml(FULL.__class__(**{**vars(FULL), "root": str(tmp_path)})))[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "4", "failures": "1", "errors": "0", "skipped": "2", "time": "12.300"}
    assert suite.get("name") == "resnet18.c.whole_infer"
    passed, failed, skipped, not_run = suite
    assert passed.find("system-out").text == "ok: loss: 0.5\nnot confirmed: weights: no .pdparams"
    assert failed.get("time") == "1.250"
    assert failed.find("failure").get("message") == "exit code 1: \ufffd[31mboom\ufffd <&>"
    assert failed.find("failure").text == "python b.py \nfirst\nlast \ufffd\ufffd line"
    assert skipped.find("skipped").get("message") == "skipped: needs card 0"
    assert not_run.find("skipped").get("message").startswith("not run: needs b,")


def test_the_end_of_a_log(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("\n".join(map(str, range(10_000))), "utf-8")
    assert log_tail(log, 3) == ["9997", "9998", "9999"]
    assert log_tail(tmp_path / "nothing", 3) == []


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
    head = {"config": "c", "layout": 32, "dialect": "generic", "model_name": "m", "mode": "whole_infer"}
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
    head = {"config": "c", "layout": 32, "dialect": "generic", "model_name": "m", "mode": "whole_infer"}
    with pytest.raises(LowbitError, match="cannot write"):
        append_status(ChainPlan(**head, root=Path(tmp_path), output="./out", steps=()), "x")
