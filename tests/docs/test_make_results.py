from __future__ import annotations

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
        "step_amx",
        "step_avx2",
    }
    assert set(row) <= known
    assert not ("accuracy" in row and "top1" in row)
    if "accuracy" in row:
        assert make_results.accuracy_rows()[row["accuracy"]].get("recipe", "fp32") == row["recipe"]
    if row["recipe"] != "fp32":
        load_recipe(row["recipe"])
    for key in ("step_amx", "step_avx2"):
        if key in row:
            assert f"{row[key]:.2f} (" in NUMBERS, f"docs/numbers.md does not record {row[key]}"
    if "latency" in row:
        recorded = f"lowbit, `{row['recipe']}` | {row['latency']:.2f} |"
        assert recorded in NUMBERS, f"docs/numbers.md does not record {recorded}"


def test_a_figure_that_was_not_measured_stays_empty():
    cells = make_results._cells({"network": "N", "recipe": "fp32"}, {}, {}, make_results.ENGLISH)
    assert cells == ["N", "fp32", "", "", "", "", "", ""]
