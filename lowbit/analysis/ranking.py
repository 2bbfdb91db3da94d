"""The layers of a model by how much their quantization costs."""

from __future__ import annotations

import math
from typing import Any

from lowbit.analysis.operands import OperandView
from lowbit.analysis.sensitivity import Sum, Sums
from lowbit.nn.convert import Preparation
from lowbit.recipe.plan import Plan


def rank(
    preparation: Preparation,
    sums: Sums,
    weights: dict[str, OperandView],
    inputs: dict[str, OperandView],
    gradients: dict[str, dict[str, OperandView]],
) -> list[dict[str, Any]]:
    """One row a quantized layer, the one that costs most first.

    `only_loss` is the loss that the layer adds when it alone is quantized, `without_loss` the loss that goes
    away when it alone is not; `only_top1` and `without_top1` are the accuracies, `divergence` how far the
    answers move when it alone is quantized (KL divergence, in nats). The order is by `only_loss`:
    without a layer, the errors that others have added before it are seen differently. A layer has
    two gradients, one for each backward product: the row has the figures of the one with the lower
    SQNR, and both histograms.
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
            "divergence": only.divergence / sums.images,
            "without_loss": _mean(sums.quantized, sums) - _mean(without, sums),
            "without_top1": without.hits / sums.images,
        }
        for role, views in (("weight", weights), ("input", inputs)):
            view = views.get(name, OperandView()).values()
            row |= {f"{role}_{key}": value for key, value in view.items()}
        rows.append(row | _gradients(gradients.get(name, {})))
    return sorted(rows, key=lambda row: -row["only_loss"])


def _gradients(views: dict[str, OperandView]) -> dict[str, Any]:
    found = {operand.split(".")[0]: view.values() for operand, view in views.items()}
    worst = min(
        found.values(),
        key=lambda values: math.inf if values["sqnr"] is None else values["sqnr"],
        default=OperandView().values(),
    )
    row: dict[str, Any] = {f"gradient_{key}": worst[key] for key in ("sqnr", "clipped", "dead")}
    row["gradient_histograms"] = {product: values["histogram"] for product, values in found.items()}
    return row


def _mean(one: Sum, sums: Sums) -> float:
    return one.loss / sums.images


def _bits(plan: Plan) -> str:
    """
    >>> _bits(Plan())
    'W32A32'
    """
    parts = {"W": plan.forward.weight.grid, "A": plan.forward.input.grid}
    return "".join(f"{letter}{grid.bits or 32}" for letter, grid in parts.items())
