from __future__ import annotations

import json
import re

import pytest
import yaml

from docs import make_results
from lowbit.recipe import load_recipe

DATA = yaml.safe_load(make_results.DATA.read_text("utf-8"))
NUMBERS = (make_results.ROOT / "docs/numbers.md").read_text("utf-8")


def test_the_tables_are_those_of_the_data():
    for page, text in make_results.make_pages().items():
        assert (make_results.ROOT / page).read_text("utf-8") == text, f"{page}: run `make docs`"


@pytest.mark.parametrize("language", [make_results.ENGLISH, make_results.CHINESE], ids=lambda one: one.page)
def test_the_table_has_all_rows(language):
    table = make_results.make_table(language)
    assert len(re.findall(r"^\| ", table, re.MULTILINE)) == 1 + len(DATA["results"])


def test_the_table_of_accuracy_has_all_measured_rows():
    rows = make_results.accuracy_rows()
    table = make_results.make_accuracy_table()
    assert [name for name, row in rows.items() if "top1" in row] == re.findall(r"^\| `(.+?)`", table, re.M)


@pytest.mark.parametrize("row", DATA["results"], ids=lambda row: f"{row['network']}-{row['recipe']}")
def test_rows_name_recipes_and_recorded_figures(row):
    known = {
        "network",
        "recipe",
        "accuracy",
        "baseline",
        "top1",
        "onnx_bytes",
        "latency",
        "step",
    }
    assert set(row) <= known
    assert not ("accuracy" in row and "top1" in row)
    if "accuracy" in row:
        assert make_results.accuracy_rows()[row["accuracy"]].get("recipe", "fp32") == row["recipe"]
    if row["recipe"] != "fp32":
        load_recipe(row["recipe"])
    if "step" in row:
        for name in make_results.STEP_FILES:
            assert make_results.step_speed(name, *row["step"]) > 0
    if "latency" in row:
        recorded = f"lowbit, `{row['recipe']}` | {row['latency']:.2f} |"
        assert recorded in NUMBERS, f"docs/numbers.md does not record {recorded}"


def test_each_file_of_steps_has_a_table():
    files = sorted(file.stem for file in make_results.STEPS.glob("*.json"))
    assert files and files == sorted(re.findall(r"<!-- steps (\S+) -->", NUMBERS))
    for name in files:
        conditions = {
            (figure["processor"], figure["instructions"]) for figure in make_results.step_figures(name)
        }
        assert len(conditions) == 1, f"{name} mixes measurements of several machines"


def test_a_table_of_steps(tmp_path, monkeypatch):
    row = {"faster": 1.0, "least": 1.0, "most": 1.0}
    rows = [
        {"side": "lowbit fp32", "seconds": 1.0, **row},
        {"side": "QAT W8A8", "seconds": 0.8, **row},
        {"side": "W8A8G8", "seconds": 0.5, **row, "faster": 2.0},
        {"side": "PyTorch fp32", "seconds": 1.2, **row},
        {"side": "PyTorch fp32 compiled", "seconds": 1.1, **row},
    ]
    figures = [
        {"title": "A training step: resnet20", "case": "resnet20", "rows": rows},
        {"title": "A training step: tiny", "case": "tiny", "rows": rows[:2]},
    ]
    (tmp_path / "here.json").write_text(json.dumps(figures))
    monkeypatch.setattr(make_results, "STEPS", tmp_path)
    lines = make_results.make_steps_table("here").splitlines()
    assert lines[0] == "|  | resnet20 | tiny |"
    assert "| W8A8G8 | 2.00 (1.00 to 1.00) |  |" in lines
    assert "| W8A8G8, relative to PyTorch's fastest fp32 | 2.20 |  |" in lines
    assert "| time of QAT W8A8 / lowbit fp32 | 0.80 | 0.80 |" in lines
    assert make_results.step_speed("here", "resnet20", "W8A8G8") == 2.0


def test_a_figure_that_was_not_measured_stays_empty():
    cells = make_results._cells({"network": "N", "recipe": "fp32"}, {}, {}, make_results.ENGLISH)
    assert cells == ["N", "fp32", "", "", "", "", "", ""]
