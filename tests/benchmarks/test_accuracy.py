"""The rows of benchmarks/accuracy.yaml can be run: recipes, configs and options are valid."""

from __future__ import annotations

import paddle
import pytest
import yaml

from benchmarks.accuracy import MEASURE, ROWS, in_bits, recipe_of
from lowbit.config import load_config
from lowbit.models import build_model
from lowbit.nn.convert import prepare
from lowbit.recipe import make_recipe

TABLE = yaml.safe_load(ROWS.read_text("utf-8"))["rows"]
TRAINED = {name: row for name, row in TABLE.items() if row.get("kind", "ptq") != "ptq"}
NEEDED = {"seed", "commit", "date"}


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_row_has_a_kind_and_a_recipe(name):
    row = TABLE[name]
    assert row.get("kind", "ptq") in MEASURE
    if "recipe" in row:
        make_recipe(recipe_of(row))
    if "top1" in row:
        assert row.keys() >= NEEDED
        # A run from scratch may be measured before fp32's.
        assert "fp32" in row or (row["kind"] == "train" and "recipe" in row)
        if "seeds" in row:
            assert row["top1"] == pytest.approx(sum(row["seeds"].values()) / len(row["seeds"]), abs=0.006)


@pytest.mark.parametrize("name", sorted(TRAINED))
def test_rows_that_train_have_valid_options(name):
    row = TRAINED[name]
    config = load_config(row["config"], row["options"])
    assert config.Arch.name == row["network"]
    if "recipe" in row:
        example = paddle.zeros([2, 3, 32, 32])
        prepare(build_model(row["network"], 10), make_recipe(recipe_of(row)), example)


def test_bits_of_a_row_leave_first_and_last_layer():
    values = recipe_of({"kind": "qat", "recipe": "qat_w4a4", "bits": 3})
    plans = make_recipe(values).plans(build_model("resnet20", 10))
    assert {str(plan.forward.weight.grid) for plan in plans.values()} == {"int3", "int8"}
    assert in_bits(values, None) is values
