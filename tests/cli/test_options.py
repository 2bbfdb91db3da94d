"""Every table that a command prints, at 80 columns with long names: no line is longer, no word is broken."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from lowbit.analysis import Measurement
from lowbit.api.analysis import Analysis, _layer
from lowbit.cli.options import show
from lowbit.cli.plan import plan_sections
from lowbit.deploy.verify import EngineReport, Latency, Report, Size
from lowbit.deploy.verify.agreement import Agreement
from lowbit.deploy.verify.layer_differences import LayerDifference, Steps
from lowbit.deploy.verify.tables import report_sections
from lowbit.formatting import as_text
from lowbit.models import build_model
from lowbit.recipe import load_recipe, make_recipe
from tests.support.fake_run import write_run

LONG = "backbone.stages.3.blocks.12.attention.output_projection.depthwise_convolution"
"""Longer than a table of 80 columns has for it."""


def check(text: str, *names: str, width: int = 80) -> None:
    """Lines are short enough; names, and numbers with their units, are whole or broken at separators."""
    assert max(map(len, text.splitlines())) <= width, text
    words = set(re.findall(r"[^\s./_,\-]+", text))
    for name in names:
        assert set(re.findall(r"[^\s./_,\-]+", name)) <= words, name


def verification() -> Report:
    answers = Agreement(1000, 0.98125, 0.99875, 0.99, 12.5, 0.0001, 0.1, 2.44, 0.01, 0.5)
    steps = Steps()
    steps.add(np.array([3, 4, 5, 6]), np.array([3, 4, 5, 8]))
    layers = [LayerDifference(f"{LONG}{i}", [f"{LONG}.conv", f"{LONG}.add"], steps, steps) for i in range(3)]
    latency = [Latency(size, 2, 2440.0, 1220.0, 2.0, 1.9, 2.1, 15) for size in (1, 16)]
    name = "Paddle Inference 3.3.1 (oneDNN, int8 where possible)"
    engine = EngineReport("paddle", name, 2, answers, layers, latency, note=f"{LONG} runs in fp32")
    return Report(0.999, answers, [engine], fp32=answers, integers=answers, integers_compared=10**9)


def test_verify():
    sections = report_sections(verification(), [Size("ONNX", 11_000_000, 45_000_000)])
    text = as_text(sections)
    check(text, LONG, "98.12 %", "2,440", "1,220", "45.0 MB", "wrong")
    assert "e+0" not in text
    wide = as_text(sections, None, wide=True)
    assert all(title in wide for section in sections for title in section.columns)


@pytest.mark.parametrize("gradients", [False, True])
def test_analyze(gradients):
    row = {"name": LONG, "bits": "W4A4", "only_loss": 0.0125, "only_top1": 0.98, "divergence": 1e-5}
    row |= {"without_loss": 0.5, "without_top1": 0.99}
    for role in ("weight", "input", "gradient"):
        known = gradients or role != "gradient"
        row |= {f"{role}_sqnr": math.inf if known else None, f"{role}_clipped": 0.01, f"{role}_dead": 12}
    measured = Measurement(LONG, 1000, {"loss": 1.0, "top1": 0.99}, {"loss": 1.1, "top1": 0.98}, [row])
    recipe = make_recipe({"weight_bits": 4})
    layers = tuple(_layer(one, {LONG: 4}) for one in measured.ranking)
    found = Analysis(1000, layers, measured.full, measured.quantized, "data", recipe, measured.title)
    check(found.to_text(), LONG, "W4A4", "+0.0125", "propose", "W dB")
    assert ("G dB" in found.to_text()) is gradients
    assert "W clipped" in found.to_text(None, wide=True) and "W clipped" not in found.to_text()


@pytest.mark.parametrize("recipe", ["qat_w4a4", "qt_W4_mse_det__A4_mse_det__G4_minmax_sto"])
def test_plan(recipe):
    layers = load_recipe(recipe).assign(build_model("resnet20", 10))
    for assigned in layers:
        object.__setattr__(assigned.layer, "names", (f"{LONG}.{assigned.layer.name}",))
    check(as_text(plan_sections(layers, f"{LONG} with {recipe}")), LONG, "quantized")


def test_compare(run, tmp_path, monkeypatch):
    monkeypatch.setattr("lowbit.cli.options.terminal_width", lambda: 80)
    names = [f"a_rather_long_name_of_a_run_with_seed_{seed}" for seed in range(5)]
    runs = [write_run(tmp_path / name, epochs=2, seed=seed) for seed, name in enumerate(names)]
    check(run("lowbit", "compare", *runs).out, *names, "same class, onnxruntime")


@pytest.mark.parametrize("command", ["recipes", "models"])
def test_catalogs(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    check(run("lowbit", command).out, "qat_w4a4" if command == "recipes" else "resnet20")


def test_results_of_any_width_where_nobody_watches(capsys):
    show(report_sections(verification(), []))
    assert any(len(line) > 80 for line in capsys.readouterr().out.splitlines())


def test_every_command_that_prints_results_has_json_and_quiet(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    names = "train calibrate quantize eval export verify infer analyze report compare plan bench digest"
    for name in (*names.split(), "doctor", "recipes", "models"):
        text = run("lowbit", name, "--help").out
        assert "--json" in text and "--quiet" in text, name


def test_commands_print_json_and_nothing_else(run, trained, tmp_path):
    exported = json.loads(run("lowbit", "export", trained, "--output", tmp_path / "e", "--json").out)
    assert exported["formats"][0]["format"] == "paddle"
    assert set(json.loads(run("lowbit", "digest", tmp_path / "e", "--json").out).values()) == {"whole"}
    assert run("lowbit", "digest", tmp_path / "e", "--quiet").out == ""
    assert run("lowbit", "eval", trained, "--quiet").out.startswith(" * Acc@1 ")
    assert "qat_w4a4" in run("lowbit", "recipes", "--quiet").out.splitlines()
