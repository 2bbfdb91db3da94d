from __future__ import annotations

import numpy as np
import paddle
from paddle import nn

from lowbit.nn import prepare
from lowbit.recipe import make_recipe
from lowbit.training.evaluation_table import Row, evaluate_in_all_ways, names_of_ways, rows_as_text


def model_with(**bits) -> nn.Layer:
    model = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.Conv2D(4, 4, 3), nn.Conv2D(4, 4, 1))
    rules = [{"forward": {operand: {"grid": grid} for operand, grid in bits.items()}}]
    if "weight" in bits:
        rules.append({"match": {"index": 0}, "forward": {"weight": {"grid": "int8"}}})
    return prepare(model, make_recipe({"rules": rules}))


def test_names_are_those_of_most_layers():
    assert names_of_ways(model_with(weight="int4", input="int2"))["quantized"] == "w4a2"
    assert names_of_ways(model_with(weight="int4")) == {"quantized": "w4", "weights": "w4", "full": "fp"}
    assert names_of_ways(model_with(input="int3")) == {"quantized": "a3", "weights": "weights", "full": "fp"}


def test_each_way_sees_the_model_of_its_own_and_leaves_it_as_it_was():
    paddle.seed(0)
    model = model_with(weight="int2", input="int2")
    x, more = paddle.randn([4, 3, 6, 6]), paddle.randn([4, 3, 6, 6]) * 3
    before = model.state_dict()["1._mean"].numpy().copy()
    seen = []

    def evaluate():
        seen.append(model(x).numpy())
        return {"loss": float(len(seen))}

    rows = evaluate_in_all_ways(model, evaluate, lambda: [more])
    assert [row.metrics["loss"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.refreshed for row in rows] == [False, True] * 3
    for number, one in enumerate(seen):
        assert all(np.abs(one - other).max() > 1e-4 for other in seen[:number])
    np.testing.assert_array_equal(model.state_dict()["1._mean"].numpy(), before)
    assert [row.how for row in evaluate_in_all_ways(model, evaluate)] == ["quantized", "weights", "full"]


def test_the_table_is_as_wide_in_every_line():
    metrics = {"loss": 0.5, "top1": 1.0, "top5": 0.98765}
    lines = rows_as_text(
        [Row("quantized", "w4a4", False, metrics), Row("quantized", "w4a4", True, metrics)]
    ).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["w4a4", "as", "trained", "100.00", "%", "98.77", "%", "0.5000"],
        ["w4a4", "refreshed", "100.00", "%", "98.77", "%", "0.5000"],
    ]
    assert len({len(line) for line in lines}) == 1
