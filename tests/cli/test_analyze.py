"""`lowbit analyze` on runs that were trained."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from lowbit.recipe import load_recipe
from tests.support.tiny_net import build_tiny


@pytest.fixture
def recipe(tmp_path):
    rule = {"forward": {"input": {"grid": "int4"}, "weight": {"grid": "int4", "granularity": "N"}}}
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({"rules": [rule]}))
    return file


def test_an_fp32_run_with_a_recipe_and_a_budget(run, trained, recipe, config_file, tmp_path):
    folder = tmp_path / "analyzed"
    shutil.copytree(trained, folder)
    found = run("lowbit", "analyze", folder, "--recipe", recipe, "--images", 8, "--budget", "3bits")
    assert found.code == 0 and "conv" in found.out and "propose" in found.out
    proposed = load_recipe(folder / "recipe_3bits.yaml").plans(build_tiny())
    counts = {"conv": 8 * 3 * 9, "head": 8 * 16 * 4}
    bits = {name: proposed[name].forward.weight.grid.bits for name in counts}
    assert sum(counts[name] * bits[name] for name in counts) <= 3 * sum(counts.values())
    assert run("lowbit", "train", "-c", config_file, "--recipe", folder / "recipe_3bits.yaml").code == 0
    again = run("lowbit", "analyze", folder, "--recipe", recipe, "--images", 8, "--json")
    assert json.loads(again.out)["proposed"] is None
    assert {row["name"] for row in json.loads(again.out)["ranking"]} == {"conv", "head"}
    assert "analyzed before" in run("lowbit", "analyze", folder, "--recipe", recipe, "--images", 8).out
    report = run("lowbit", "report", folder)
    assert report.code == 0 and "Sensitive layers" in (folder / "report.html").read_text("utf-8")


def test_a_low_precision_run_shows_its_gradients(run, low_precision, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(low_precision, folder)
    rows = json.loads(run("lowbit", "analyze", folder, "--images", 8, "--json").out)["ranking"]
    assert rows and all(row["gradient_sqnr"] > 0 for row in rows)
    assert all(row["gradient_dead"] is not None for row in rows)
    histograms = [row["gradient_histograms"] for row in rows]
    assert any("grad_input" in found for found in histograms)
    assert all(sum(found["grad_weight"]["counts"]) for found in histograms)
    assert "G dB" in run("lowbit", "analyze", folder, "--images", 8).out
    assert run("lowbit", "report", folder).code == 0
    assert "SQNR of gradient" in (folder / "report.html").read_text("utf-8")


def test_what_cannot_be_analyzed_is_said(run, trained, low_precision, recipe):
    assert "--recipe" in run("lowbit", "analyze", trained).error
    assert "quantized already" in run("lowbit", "analyze", low_precision, "--recipe", recipe).error
    assert "4.5bits" in run("lowbit", "analyze", trained, "--budget", "little").error
    assert "--budget" in run("lowbit", "analyze", trained, "--output", "x.yaml").error
