from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from tests.tipc.conftest import repo, stand_in_model  # noqa: F401 (fixtures)

LITE = "lite_train_lite_infer"


@pytest.fixture
def config(repo, stand_in_model):  # noqa: F811
    return repo


def test_prepare_run_report(run, config, tmp_path):
    prepared = run("lowbit", "tipc", "prepare", config, LITE)
    assert (prepared.code, prepared.out.count("drawn")) == (0, 1)
    result = run("lowbit", "tipc", "run", config, LITE, "--device", "cpu", "--timeout", 100)
    assert result.code == 0, result
    assert result.out.count(" Run successfully with command - stand_in - ") == 4
    assert "Passed. stand_in, lite_train_lite_infer: 4 passed, in " in result.out
    report = run("lowbit", "tipc", "report", config, LITE, "--junit", tmp_path / "j.xml")
    assert (report.code, report.out) == (0, result.out[result.out.index("#  step") :].rsplit("Results:")[0])
    assert ET.parse(tmp_path / "j.xml").getroot()[0].get("tests") == "4"
    assert json.loads(run("lowbit", "tipc", "report", config, LITE, "--json").out)["passed"] is True


def test_a_failed_chain(run, config, monkeypatch):
    monkeypatch.setenv("STAND_IN", "loss")
    result = run("lowbit", "tipc", "run", config, LITE, "--device", "cpu")
    assert result.code == 1
    assert "failed: loss: the last one is nan" in result.out
    assert run("lowbit", "tipc", "report", config, LITE).code == 1


def test_without_a_card(run, config, monkeypatch):
    from lowbit.machine import PaddleBuild

    monkeypatch.setattr("lowbit.machine.paddle_build", lambda: PaddleBuild("3", "c", None, None, cards=0))
    config.write_text(config.read_text("utf-8").replace("gpu_list:-1", "gpu_list:0"), "utf-8")
    skipped = run("lowbit", "tipc", "run", config, LITE)
    assert skipped.code == 1
    assert "Nothing ran. stand_in, lite_train_lite_infer: 4 skipped" in skipped.out
    auto = run("lowbit", "tipc", "run", config, LITE, "--device", "auto")
    assert auto.code == 0, auto
    assert auto.out.startswith("Paddle sees no card here: everything runs on the CPU (--device auto)")


def test_mistakes(run, config, tmp_path):
    assert 'did you mean "auto"' in run("lowbit", "tipc", "run", config, LITE, "--device", "autoo").error
    assert "has not been run in this mode yet" in run("lowbit", "tipc", "report", config, LITE).error
    config.write_text(config.read_text("utf-8").replace(":stand_in.py train", ":null"), "utf-8")
    assert "has no command for" in run("lowbit", "tipc", "run", config, LITE, "--device", "cpu").error
