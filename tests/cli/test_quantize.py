from __future__ import annotations

import json

import pytest

from lowbit.recipe import load_recipe, make_recipe
from lowbit.training.post_training import ptq_recipe
from tests.training.conftest import ROOT


@pytest.fixture
def arguments(config_file, trained, tmp_path):
    weights = trained / "checkpoints/best.pdparams"
    return ["-c", config_file, "--pretrained", weights, "--output-dir", tmp_path / "ptq", "--steps", 2]


def test_the_recipe_is_that_of_the_file_but_for_the_observer():
    own, other = make_recipe(ptq_recipe()), make_recipe(ptq_recipe("kl"))
    assert own == load_recipe(ROOT / "recipes/ptq_w8a8.yaml")
    assert str(other.rules[0].forward.input.observer) == "kl"
    assert other.rules[0].forward.weight == own.rules[0].forward.weight


@pytest.mark.parametrize("algo", ["minmax", "mse", "percentile(99.9)", "kl", "hist"])
def test_calibrated_and_exported(run, arguments, tmp_path, algo):
    result = run("lowbit", "quantize", *arguments, "--algo", algo)
    assert result.code == 0, result
    assert f"per-tensor {algo} fixed".replace("minmax ", "") in result.out  # the default is not shown
    assert "compared in Paddle Inference" in result.out
    figures = json.loads(run("lowbit", "eval", tmp_path / "ptq", "--json").out)
    exported = json.loads(run("lowbit", "eval", tmp_path / "ptq/export", "--json").out)
    assert exported["top1"] == figures["top1"]


def test_mistakes(run, arguments, tmp_path):
    recipe = ROOT / "recipes/ptq_w8a8.yaml"
    both = run("lowbit", "quantize", *arguments, "--recipe", recipe, "--algo", "kl")
    assert "leave it out with --recipe" in both.error
    assert 'did you mean "kl"' in run("lowbit", "quantize", *arguments, "--algo", "kll").error
    assert 'did you mean "onnx"' in run("lowbit", "quantize", *arguments, "--format", "onx").error
    assert not (tmp_path / "ptq/export").exists()
