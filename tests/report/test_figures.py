"""A run in figures."""

from __future__ import annotations

from lowbit.report import figures, open_run
from lowbit.report.words import NOTHING
from tests.report.fake_run import write_run


def test_figures_are_those_of_the_log_and_of_verify(tmp_path):
    run = open_run(write_run(tmp_path / "run"))
    found = figures(run)
    best = max(value for _, value in run.points("eval", "top1"))
    assert found["best top-1"] == f"{100 * best:.2f} %"
    assert found["epochs"] == "4"
    assert found["fp32 top-1"] == "99.00 %"
    assert found["verified"] == "passed"
    assert found["same class, onnxruntime"] == "99.50 %"
    assert found["exported, ONNX"] == "150.0 KB"
    assert found["speed-up, onnxruntime, batch 1"] == "2.00x"


def test_what_there_is_not_is_a_dash(tmp_path):
    folder = write_run(tmp_path / "run", verified=False)
    (folder / "metrics.jsonl").unlink()
    (folder / "plan.json").unlink()
    found = figures(open_run(folder))
    assert found["precision"] == "fp32"
    assert {found[key] for key in ("best top-1", "validation loss", "weights, planned", "verified")} == {
        NOTHING
    }
