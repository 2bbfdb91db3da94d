"""Runs in figures, and the verdict about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowbit.report import Run, config_differences, figures, open_run, open_runs, verdicts
from lowbit.report.charts import tradeoffs
from lowbit.report.elements import NOTHING
from tests.support.fake_run import write_run


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


def test_images_a_second_only_from_epochs_without_other_processes(tmp_path):
    run = open_run(write_run(tmp_path / "run"))
    trained = run.of_kind("train")
    assert [speed for _, speed in run.speeds()] == [one["images_per_second"] for one in trained]
    trained[0]["other_processes"] = 0.5
    del trained[1]["other_processes"]  # of an older version: not known
    assert [epoch for epoch, _ in run.speeds()] == [3, 4]
    for one in trained:
        one["other_processes"] = 0.5
    assert figures(run)["images a second"] == NOTHING


def _engine(run: Run, **changes) -> dict:
    return run.verify["engines"][0] | changes


def test_the_verdict_is_about_the_fastest_engine(tmp_path):
    run = open_run(write_run(tmp_path / "run"))
    (latency,) = run.verify["engines"][0]["latency"]
    large = latency | {"batch_size": 16, "quantized_ms": 1.0, "ratio": 9.0}
    slow = [large, latency | {"quantized_ms": 5.0, "ratio": 1.6}]
    run.verify["engines"] += [
        _engine(run, engine="openvino", name="OpenVINO", latency=slow, top1=0.5),
        _engine(run, engine="paddle", name="Paddle", latency=[], top1=0.25),
    ]
    (found,) = verdicts([run])
    assert (found.engine, found.top1, found.speedup) == ("ONNX Runtime 1.23", 0.985, 2.0)
    assert found.size_ratio == pytest.approx(1_100_000 / 150_000)
    assert found.sentence() == (
        "98.50 % top-1 in ONNX Runtime 1.23, the same as fp32; 150.0 KB, 7.33x smaller; 4 ms, faster (2.00x)."
    )
    for engine in run.verify["engines"]:
        engine["latency"] = []
    run.verify["engines"][2] |= {"seconds": 0.8, "images": 64}  # less time, for fewer images
    assert verdicts([run])[0].engine == "ONNX Runtime 1.23"
    run.verify["engines"][2] |= {"seconds": 0.1, "images": 200}
    (found,) = verdicts([run])
    assert (found.engine, found.speedup, found.latency) == ("Paddle", None, None)
    assert found.sentence().startswith("25.00 % top-1 in Paddle, 73.50 points below fp32")


def test_an_accuracy_of_a_sample_is_not_compared(tmp_path):
    run = open_run(write_run(tmp_path / "run"))
    run.verify["engines"] = [_engine(run, engine="paddle", name="Paddle", top1=1.0, images=64)]
    (found,) = verdicts([run])
    assert (found.engine, found.top1, found.distance, found.sample) == ("Paddle", None, None, 64)
    assert found.sentence().startswith(
        "top-1 in Paddle not measured on all images (verified on 64); 150.0 KB"
    )
    assert figures(run)["same class, paddle"] == "99.50 % of 64 images"
    assert not any(tradeoffs([found]).values())


def test_where_the_accuracy_of_fp32_is_from(tmp_path):
    fp32, run = open_runs([write_run(tmp_path / "fp32"), write_run(tmp_path / "run")])
    for layer in fp32.plan:
        layer["quantized"] = False
    fp32.verify["model"]["top1"] = 0.75
    run.verify["fp32"] = None
    found = verdicts([fp32, run])
    assert (found[0].fp32_top1, found[0].distance) == (None, None)  # it is fp32 itself
    assert found[1].fp32_top1 == 0.75, "training measured it on other images"
    run.verify["validation_images"] = 200  # verified on all of them, as in training
    (_, measured) = verdicts([fp32, run])
    assert measured.fp32_top1 == 0.99 and measured.fp32_source.endswith("in training")
    run.metrics[:] = [one for one in run.metrics if one["kind"] != "baseline"]
    assert verdicts([fp32, run])[1].fp32_top1 == 0.75
    fp32.verify["images"] = 7  # not the same images
    assert verdicts([fp32, run])[1].fp32_top1 is None


def test_a_run_that_is_not_deployed(tmp_path):
    folder = write_run(tmp_path / "run", verified=False)
    assert verdicts([open_run(folder)])[0].sentence() == "Not deployed yet."
    values = json.loads((write_run(tmp_path / "other") / "verify.json").read_text())
    (folder / "verify.json").write_text(json.dumps(values | {"engines": []}))
    assert verdicts([open_run(folder)])[0].engine is None


def _run(**config) -> Run:
    return Run(path=Path("run"), name="run", config=config)


def test_only_what_differs_is_named():
    one = _run(Global={"epochs": 2, "seed": 1, "output_dir": "a"}, AMP=None, Recipe="w4a4.yaml")
    other = _run(
        Global={"epochs": 3, "seed": 1, "output_dir": "b"}, AMP={"level": "O1"}, Recipe={"rules": [1, 2]}
    )
    found = config_differences([one, other])
    assert list(found) == ["Global.epochs", "Recipe", "AMP.level"]
    assert found["Global.epochs"] == ["2", "3"]
    assert found["AMP.level"] == ["–", "O1"]  # noqa: RUF001
    assert found["Recipe"] == ["w4a4.yaml", '2 rules: {"rules": [1, 2]}']
    assert config_differences([one, one]) == {}
