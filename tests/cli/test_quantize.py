from __future__ import annotations

import json

import pytest

from lowbit.recipe import load_recipe, make_recipe
from lowbit.training.post_training import ptq_recipe
from tests.support.commands import ACCURACY, tiny_values, write_config
from tests.support.runs import ROOT

RECIPE = ROOT / "recipes/ptq_w8a8.yaml"


@pytest.fixture
def given(config_file, trained, tmp_path):
    weights = trained / "checkpoints/best.pdparams"
    return ["-c", config_file, "--pretrained", weights, "--output-dir", tmp_path / "ptq"]


@pytest.fixture
def arguments(given):
    return [*given, "--recipe", RECIPE]


def test_a_trained_model_becomes_a_quantized_run(run, arguments, trained, tmp_path):
    result = run("lowbit", "calibrate", *arguments, "--steps", 2, "--batch-size", 4)
    assert result.code == 0, result
    assert "2 of 2 layers are quantized" in result.out
    assert "Calibrated on 2 batches of 4 images" in result.out
    for row in ("fp32 ", "quantized ", "difference "):
        assert sum(line.startswith(row) for line in result.out.splitlines()) == 1
    assert len(ACCURACY.findall(result.out)) == 1
    assert result.out.splitlines()[-1] == f"Run folder: {tmp_path / 'ptq'}"
    figures = json.loads(run("lowbit", "eval", tmp_path / "ptq", "--json").out)
    assert figures["fp32"] == json.loads(run("lowbit", "eval", trained, "--json").out)
    assert run("lowbit", "export", tmp_path / "ptq").code == 0
    exported = json.loads(run("lowbit", "eval", tmp_path / "ptq/export", "--json").out)
    assert (exported["top1"], exported["top5"]) == (figures["top1"], figures["top5"])


def test_other_images(run, arguments, lite, tmp_path):
    result = run("lowbit", "calibrate", *arguments, "--data-path", lite / "val_list.txt", "--batch-size=8")
    assert "Calibrated on 2 batches of 8 images (all there are; 10 were asked for)" in result.out
    saved = (tmp_path / "ptq/config.yaml").read_text()
    assert f"cls_label_path: {lite / 'val_list.txt'}" in saved


def test_no_validation_images(run, arguments):
    result = run("lowbit", "calibrate", *arguments, "-o", "Global.eval_during_train=false")
    assert result.code == 0, result
    assert not ACCURACY.search(result.out)


@pytest.mark.parametrize(
    ("left_out", "message"),
    [("--recipe", "give --recipe FILE"), ("--pretrained", "give its weights with --pretrained FILE")],
)
def test_what_is_needed(run, arguments, left_out, message):
    at = arguments.index(left_out)
    assert message in run("lowbit", "calibrate", *arguments[:at], *arguments[at + 2 :]).error


def test_a_device_that_is_not_there(run, arguments):
    assert "is not available" in run("lowbit", "calibrate", *arguments, "--device=gpu").error


def test_images_that_are_not_there(run, arguments, lite, tmp_path):
    assert "nowhere: no such folder" in run("lowbit", "calibrate", *arguments, "--data-path=nowhere").error
    values = tiny_values(lite, tmp_path / "run")
    del values["DataLoader"]["Train"]
    arguments[1] = write_config(tmp_path / "c.yaml", values)
    assert "with --data-path" in run("lowbit", "calibrate", *arguments).error


def test_the_recipe_is_that_of_the_file_but_for_the_observer():
    own, other = make_recipe(ptq_recipe()), make_recipe(ptq_recipe("kl"))
    assert own == load_recipe(RECIPE)
    assert str(other.rules[0].forward.input.observer) == "kl"
    assert other.rules[0].forward.weight == own.rules[0].forward.weight


@pytest.mark.parametrize("algo", ["minmax", "mse(50)", "percentile(99.9)", "kl", "hist"])
def test_calibrated_and_exported(run, given, tmp_path, algo):
    result = run("lowbit", "quantize", *given, "--steps", 2, "--algo", algo)
    assert result.code == 0, result
    assert f"per-tensor {algo} fixed".replace("minmax ", "") in result.out  # the default is not shown
    assert "compared in Paddle Inference" in result.out
    figures = json.loads(run("lowbit", "eval", tmp_path / "ptq", "--json").out)
    exported = json.loads(run("lowbit", "eval", tmp_path / "ptq/export", "--json").out)
    assert exported["top1"] == figures["top1"]


def test_mistakes(run, given, tmp_path):
    both = run("lowbit", "quantize", *given, "--recipe", RECIPE, "--algo", "kl")
    assert "leave it out with --recipe" in both.error
    assert 'did you mean "kl"' in run("lowbit", "quantize", *given, "--algo", "kll").error
    assert 'did you mean "onnx"' in run("lowbit", "quantize", *given, "--format", "onx").error
    assert not (tmp_path / "ptq/export").exists()
