"""`lowbit advise`: a run folder in, a table, a sentence and advice.json out."""

import json

import pytest

from lowbit.api import advise as module


@pytest.fixture
def quick(monkeypatch):
    def instead(sides, **_options):
        return {name: [0.001 if name == "int8/onnxruntime" else 0.002] * 3 for name in sides}

    monkeypatch.setattr(module, "time_in_turns", instead)


def test_a_calibrated_run(run, config_file, trained, tmp_path, quick):
    weights, folder = trained / "checkpoints/best.pdparams", tmp_path / "ptq"
    options = ("-c", config_file, "--pretrained", weights, "--output-dir", folder, "--steps", 2)
    assert run("lowbit", "calibrate", *options, "--recipe", "ptq_w8a8").code == 0
    result = run("lowbit", "advise", folder, "--images", 8, "--quiet")
    assert result.code == 0, result
    assert "Recommendation: deploy onnx (W8A8) in ONNX Runtime" in result.out
    kept = json.loads((folder / "advice.json").read_text("utf-8"))
    assert kept["samples"] == 8 and kept["options"][0]["engine"] == "onnxruntime"
    assert run("lowbit", "report", folder).code == 0
    assert "Deploy onnx (W8A8) in ONNX Runtime" in (folder / "report.html").read_text("utf-8")
    assert json.loads(run("lowbit", "advise", folder, "--images", 8, "--json").out)["threads"] >= 1
