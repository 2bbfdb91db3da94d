"""The layers of a model by how much their quantization costs."""

from __future__ import annotations

from typing import Any

from lowbit.analysis.operands import OperandView
from lowbit.analysis.sensitivity import Sum, Sums
from lowbit.layers.prepare import Preparation
from lowbit.recipe.plan import Plan


def rank(
    preparation: Preparation,
    sums: Sums,
    weights: dict[str, OperandView],
    inputs: dict[str, OperandView],
    gradients: dict[str, dict[str, float]],
) -> list[dict[str, Any]]:
    """One row a quantized layer, the one that costs most first.

    `only_loss` is the loss that the layer adds when it alone is quantized, `without_loss` the loss that goes
    away when it alone is not; `only_top1` and `without_top1` are the accuracies. The order is by `only_loss`:
    without a layer, the errors that others have added before it are seen in another light, too.
    """
    rows = []
    for assigned in preparation.layers:
        name = assigned.layer.name
        if name not in sums.only:
            continue
        only, without = sums.only[name], sums.without[name]
        row: dict[str, Any] = {
            "name": name,
            "shape": list(assigned.layer.shape),
            "bits": _bits(assigned.plan),
            "only_loss": _mean(only, sums) - _mean(sums.full, sums),
            "only_top1": only.hits / sums.images,
            "without_loss": _mean(sums.quantized, sums) - _mean(without, sums),
            "without_top1": without.hits / sums.images,
        }
        for role, views in (("weight", weights), ("input", inputs)):
            view = views.get(name, OperandView()).values()
            row |= {f"{role}_{key}": value for key, value in view.items()}
        found = gradients.get(name, {})
        row["gradient_sqnr"] = min(found.values()) if found else None
        rows.append(row)
    return sorted(rows, key=lambda row: -row["only_loss"])


def _mean(one: Sum, sums: Sums) -> float:
    return one.loss / sums.images


def _bits(plan: Plan) -> str:
    """
    >>> _bits(Plan())
    'W32A32'
    """
    parts = {"W": plan.forward.weight.grid, "A": plan.forward.input.grid}
    return "".join(f"{letter}{grid.bits or 32}" for letter, grid in parts.items())
