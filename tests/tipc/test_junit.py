from __future__ import annotations

import xml.etree.ElementTree as ET

from lowbit.tipc import junit_xml
from lowbit.tipc.junit import log_tail
from tests.tipc.results import FULL


def test_every_step_is_a_case(tmp_path):
    (tmp_path / "b.log").write_bytes(b"first\nlast \xff\x07 line\n")
    suite = ET.fromstring(junit_xml(FULL.__class__(**{**vars(FULL), "root": str(tmp_path)})))[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "4", "failures": "1", "errors": "0", "skipped": "2", "time": "12.300"}
    assert suite.get("name") == "resnet18.c.whole_infer"
    passed, failed, skipped, not_run = suite
    assert passed.find("system-out").text == "ok: loss: 0.5\nnot checked: weights: no .pdparams"
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
