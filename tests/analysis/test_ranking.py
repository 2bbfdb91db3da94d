"""The rows of an analysis."""

from __future__ import annotations

from lowbit.analysis.operands import OperandView
from lowbit.analysis.ranking import rank
from lowbit.analysis.sensitivity import Sum, Sums
from lowbit.layers import preparation_of


def test_layers_are_ordered_by_what_each_adds_alone(model):
    only = {"first": 1.0, "left": 1.5, "right": 1.0, "twice": 1.1, "late": 1.0, "head": 1.0}
    without = {name: 4.0 for name in only} | {"late": 2.0}
    sums = Sums(
        batches=1,
        images=2,
        full=Sum(2.0, 2),
        quantized=Sum(8.0, 0),
        only={name: Sum(2 * loss, 1) for name, loss in only.items()},
        without={name: Sum(2 * loss, 1) for name, loss in without.items()},
    )
    rows = rank(preparation_of(model), sums, {"left": OperandView()}, {}, {"left": {"a": 3.0, "b": 2.0}})
    assert [row["name"] for row in rows[:2]] == ["left", "twice"]
    left, late = rows[0], next(row for row in rows if row["name"] == "late")
    assert (late["only_loss"], late["without_loss"]) == (0.0, 2.0)
    assert (left["only_loss"], left["only_top1"], left["bits"]) == (0.5, 0.5, "W4A4")
    assert left["gradient_sqnr"] == 2.0 and late["gradient_sqnr"] is None
    assert left["weight_sqnr"] is None
