"""The rows of an analysis."""

from __future__ import annotations

import paddle

from lowbit.analysis.operands import OperandView, view_operand
from lowbit.analysis.ranking import rank
from lowbit.analysis.sensitivity import Sum, Sums
from lowbit.nn import preparation_of
from lowbit.nn.qtensor import round_operand
from lowbit.numerics import parse_grid


def _view(values: list[float]) -> OperandView:
    x = paddle.to_tensor(values)
    return view_operand(x, round_operand(x, paddle.to_tensor([1.0]), parse_grid("int3")))


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
    gradients = {
        "grad_input.grad_output": _view([0.4, 2.2, 9.0]),  # half of it lost
        "grad_weight.grad_output": _view([1.1, 2.0, 3.0]),
    }
    rows = rank(preparation_of(model), sums, {"left": OperandView()}, {}, {"left": gradients})
    assert [row["name"] for row in rows[:2]] == ["left", "twice"]
    left, late = rows[0], next(row for row in rows if row["name"] == "late")
    assert (late["only_loss"], late["without_loss"]) == (0.0, 2.0)
    assert (left["only_loss"], left["only_top1"], left["bits"]) == (0.5, 0.5, "W4A4")
    worse = gradients["grad_input.grad_output"]
    assert (left["gradient_sqnr"], left["gradient_dead"]) == (worse.health.sqnr, 5)
    assert left["gradient_clipped"] == worse.health.clipped > 0
    assert left["gradient_histograms"] == {
        "grad_input": worse.histogram.values(),
        "grad_weight": gradients["grad_weight.grad_output"].histogram.values(),
    }
    assert late["gradient_sqnr"] is None and late["gradient_histograms"] == {}
    assert left["weight_sqnr"] is None
