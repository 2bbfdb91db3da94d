from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import tiny_values, write_config

ROOT = Path(__file__).parents[2]
W4A4 = ROOT / "recipes" / "qat_w4a4.yaml"
TINY = "tests.support.tiny_net:TinyNet"
W4A4G4 = """
rules:
  - forward:
      input: {grid: int4, granularity: N, observer: mse}
      weight: {grid: int4, granularity: N, observer: mse}
    grad_input:
      grad_output: {grid: int4, granularity: NHW, rounding: stochastic}
      weight: {grid: int4, granularity: N}
  - match: {name: head}
    skip: true
"""


def _write(path: Path, text: str) -> Path:
    file = path / "recipe.yaml"
    file.write_text(text, "utf-8")
    return file


def _rows(out: str) -> dict[str, list[str]]:
    """The table's rows by layer, cut where two blanks are."""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()]
    return {row[0]: row for row in rows if len(row) > 1 and row[1].isdecimal()}


def test_the_table_of_a_model(run):
    result = run("lowbit", "plan", "resnet20", "--recipe", W4A4, "--num-classes", 10, "--wide")
    assert result.code == 0, result
    assert result.err == ""
    rows = _rows(result.out)
    assert len(rows) == 20
    conv1 = rows["conv1"]
    assert conv1[:4] == ["conv1", "0", "Conv2D", "16x3x3x3"]
    assert conv1[4:] == ["int8/uint8 per-tensor fixed", "int8 N mse(50) learned", "forward"]
    assert rows["layer2.0.conv1"][4:6] == ["int4/uint4 per-tensor hist learned", "int4 N mse(50) learned"]
    assert rows["linear"][2:4] == ["Linear", "64x10"]
    assert "Backward: straight-through" in result.out
    assert "20 of 20 layers are quantized." in result.out


def _products(out: str, number: int) -> dict[str, list[str]]:
    """The rows of a plan's products by product, cut likewise."""
    text = out.split(f"Plan {number}, ")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def test_three_products_what_is_left_alone_and_why_not_in_integers(run, tmp_path):
    result = run("lowbit", "plan", TINY, "--recipe", _write(tmp_path, W4A4G4), "--num-classes", 4, "--wide")
    assert result.code == 0, result
    rows = _rows(result.out)
    assert rows["conv"][4:] == ["1"]
    assert rows["head"][-1] == "left as it is: skipped by rule 2"
    assert "Plan 1, of 1 Conv2D layer\n" in result.out
    assert _products(result.out, 1) == {
        "forward": ["input int4 N mse", "weight int4 N mse", "yes"],
        "grad_input": [
            *("grad_output int4 NHW stochastic", "weight int4 N"),
            "no: weight has scales per N, but grad_input sums over the output channels; "
            "it may have them per C",
        ],
        "grad_weight": [
            *("grad_output full", "input as in forward"),
            "no: straight-through: the gradient is in full precision",
        ],
    }
    assert "1 of 2 layers are quantized." in result.out


def test_layers_with_the_same_plan_share_its_number(run):
    recipe = ROOT / "recipes" / "qt_W4_mse_det__A4_mse_det__G4_minmax_sto.yaml"
    result = run("lowbit", "plan", "resnet20", "--recipe", recipe, "--num-classes", 10, "--wide")
    assert result.code == 0, result
    first, *between, last = _rows(result.out).values()
    assert first[-1] == last[-1] == "left as it is: its grids are full"
    assert {row[-1] for row in between} == {"1"}
    assert "Plan 1, of 18 Conv2D layers\n" in result.out
    assert _products(result.out, 1) == {
        "forward": ["input int4/uint4 N mse", "weight int4 N mse", "yes"],
        "grad_input": ["grad_output int4 NHW stochastic", "weight int4 C mse", "yes"],
        "grad_weight": ["grad_output int4 NC stochastic", "input int4/uint4 N mse", "yes"],
    }
    assert "18 of 20 layers are quantized." in result.out


def test_types_of_layers_have_plans_of_their_own(run, tmp_path):
    text = "rules:\n- grad_input: {grad_output: {grid: int8}}\n"
    result = run("lowbit", "plan", TINY, "--recipe", _write(tmp_path, text), "--num-classes", 4, "--wide")
    assert [row[-1] for row in _rows(result.out).values()] == ["1", "2"]
    assert "Plan 1, of 1 Conv2D layer\n" in result.out and "Plan 2, of 1 Linear layer\n" in result.out


def test_why_forward_is_not_in_integers(run, tmp_path):
    text = "rules:\n- forward: {weight: {grid: int8}}\n"
    result = run("lowbit", "plan", TINY, "--recipe", _write(tmp_path, text), "--num-classes", 4, "--wide")
    assert _rows(result.out)["conv"][4:] == ["full", "int8 per-tensor", "none"]
    assert "Not in integers, forward: input is on the grid full: conv, head\n" in result.out


def test_the_model_and_classes_of_a_config(run, lite, tmp_path):
    values = tiny_values(lite, tmp_path)
    values["Arch"]["class_num"] = 7
    config = write_config(tmp_path / "c.yaml", values)
    result = run("lowbit", "plan", "-c", config, "--recipe", W4A4, "--wide")
    assert result.code == 0, result
    assert result.err == ""
    assert _rows(result.out)["head"][3] == "128x7"
    overridden = run("lowbit", "plan", "-c", config, "-o", "Arch.class_num=9", "--recipe", W4A4, "--wide")
    assert _rows(overridden.out)["head"][3] == "128x9"


def test_assumed_classes_are_said(run):
    result = run("lowbit", "plan", TINY, "--recipe", W4A4, "--wide")
    assert result.err == "1000 classes assumed; --num-classes says otherwise\n"
    assert _rows(result.out)["head"][3] == "128x1000"


def test_fused_blocks_and_batch_norms_that_are_not(run):
    result = run("lowbit", "plan", "mobilenet_v3_small", "--recipe", W4A4, "--num-classes", 10, "--wide")
    fused, unfused = result.out.split("Fused in training on a CPU")[1].split("Batch norms that are not fused")
    assert "batch norm + residual sum" in fused and "blocks.2, blocks.4, … blocks.10 (6)" in fused
    assert "no ReLU, ReLU6 or hard swish follows it" in unfused and "blocks.0.linear_conv.1" in unfused
    found = json.loads(run("lowbit", "plan", "resnet20", "--recipe", W4A4, "--json").out)
    assert (
        found["fused"]["layer1.0"] == "2 batch norms + ReLU, with the residual sum" and found["unfused"] == {}
    )


def test_json_is_json_and_nothing_else(run):
    result = run("lowbit", "plan", TINY, "--recipe", W4A4, "--json")
    assert result.code == 0, result
    found = json.loads(result.out)
    assert (found["model"], found["recipe"], found["num_classes"]) == (TINY, str(W4A4), 1000)
    conv, head = found["layers"]
    assert conv["plan"]["forward"]["weight"] == {
        "grid": "int8",
        "granularity": "N",
        "observer": "mse(50)",
        "scaling": "learned",
        "rounding": "nearest",
        "clip": "none",
        "sign": "fixed",
        "rotation": "none",
        "samples": "1",
    }
    assert head["why_not_in_integers"]["forward"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a model's name or -c CONFIG"),
        ((TINY, "-c", "c.yaml"), "give either a model's name or -c CONFIG"),
        ((TINY, "-o", "Arch.class_num=3"), "give -c CONFIG, too"),
        (("resnet21",), 'unknown model "resnet21"'),
    ],
)
def test_which_model(run, arguments, message):
    assert message in run("lowbit", "plan", *arguments, "--recipe", W4A4).error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "rules:\n- match: {name: conv9}\n  skip: true\n",
            "recipe.yaml:2: rule 1: it has no effect: no layer is",
        ),
        ("rules:\n- match: {index: 2}\n  skip: true\n", "the model's layers are 0 to 1"),
        ("rules:\n- forward: {weight: {grid: int1}}\n", "integer grids have 2 to 8 bits"),
        ("weight_bits: 17\n", "PaddleSlim takes 1 to 16"),
    ],
)
def test_mistakes_in_the_recipe(run, tmp_path, text, message):
    assert message in run("lowbit", "plan", TINY, "--recipe", _write(tmp_path, text)).error


def test_no_recipe(run, tmp_path):
    assert "--recipe" in run("lowbit", "plan", TINY).err
    assert "no recipe file" in run("lowbit", "plan", TINY, "--recipe", tmp_path / "none.yaml").error


def test_help_teaches_with_examples_and_shows_no_markup(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    result = run("lowbit", "plan", "--help")
    assert "lowbit plan resnet20 --recipe qat_w4a4" in result.out.split("Example")[1]
    assert "**" not in result.out
    assert "`" not in result.out


def test_tensors_between_layers(run):
    result = run("lowbit", "plan", "resnet20", "--recipe", "ptq_w7a8", "--num-classes", 10)
    assert "layer1.0 (input)" in result.out and "19 of 19 tensors between layers are quantized" in result.out
    found = json.loads(run("lowbit", "plan", "resnet20", "--recipe", "ptq_w7a8", "--json").out)
    assert found["outputs"][0] == {
        "owner": "layer1.0",
        "place": "input",
        "readers": ["layer1.0.conv1"],
        "spec_of": "layer1.0.conv1",
    }
    assert found["outputs_in_floats"] == []
