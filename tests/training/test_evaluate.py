from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.config.transform_ops import NormalizeImage
from lowbit.data import ArrayDataset, Loader, compose
from lowbit.nn import prepare
from lowbit.recipe import make_recipe
from lowbit.training.evaluate import (
    Row,
    comparison_table,
    difference,
    evaluate,
    evaluate_in_all_ways,
    names_of_ways,
    rows_as_text,
)
from tests.support.tiny_net import build_tiny


def a_loader(batch_size: int) -> Loader:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (23, 16, 16, 3), np.uint8)
    dataset = ArrayDataset(images, rng.integers(0, 4, 23), list("abcd"), "noise")
    return Loader(
        dataset,
        compose([NormalizeImage()]),
        batch_size=batch_size,
        shuffle=False,
        drop_last=False,
        workers=2,
        seed=0,
        training=False,
    )


def test_the_size_of_batches_changes_nothing():
    model = build_tiny()
    results = [evaluate(model, a_loader(batch_size), topk=(1, 2)) for batch_size in (1, 7, 23, 100)]
    assert all(result == pytest.approx(results[0], rel=1e-5) for result in results)
    assert results[0]["top1"] * 23 == pytest.approx(round(results[0]["top1"] * 23))


def test_figures_equal_those_of_a_plain_loop():
    model = build_tiny()
    (batch,) = a_loader(23).epoch(0)
    model.eval()
    logits = model(paddle.to_tensor(batch.images)).numpy()
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    expected = {
        "loss": -log_p[np.arange(23), batch.labels].mean(),
        "top1": (logits.argmax(1) == batch.labels).mean(),
    }
    assert evaluate(model, a_loader(5), topk=(1,)) == pytest.approx(expected, rel=1e-5)


def test_the_model_comes_back_as_it_was():
    model = build_tiny()
    model.train()
    model.norm.eval()  # frozen by its owner
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    evaluate(model, a_loader(8))
    assert model.training and not model.norm.training
    assert all(np.array_equal(before[name], value.numpy()) for name, value in model.state_dict().items())


FP32 = {"loss": 1.0, "top1": 0.7205, "top5": 0.9035}
QUANTIZED = {"loss": 1.0312, "top1": 0.7125, "top5": 0.9040}


def test_the_difference_is_quantized_minus_fp32():
    change = difference(FP32, QUANTIZED)
    assert {name: round(value, 4) for name, value in change.items()} == {
        "loss": 0.0312,
        "top1": -0.008,
        "top5": 0.0005,
    }


def test_the_table_has_a_column_for_every_figure():
    lines = comparison_table(FP32, QUANTIZED).splitlines()
    assert [line.split() for line in lines] == [
        ["top-1", "top-5", "loss"],
        ["fp32", "72.05", "%", "90.35", "%", "1.0000"],
        ["quantized", "71.25", "%", "90.40", "%", "1.0312"],
        ["difference", "-0.80", "+0.05", "+0.0312"],
    ]
    assert len({len(line) for line in lines}) == 1
    assert not any(line.startswith(" * ") for line in lines)  # Paddle's tools look for that one


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
