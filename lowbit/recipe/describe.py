"""Plans as plain values, for JSON: what `lowbit plan --json` prints and a run keeps as plan.json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lowbit.recipe.plan import PRODUCTS, Plan, operands_of
from lowbit.recipe.recipe import LayerPlan


def describe_layers(layers: Iterable[LayerPlan]) -> list[dict[str, Any]]:
    """One entry per layer: what it is, its plan in words, and for each product why it is not in integers."""
    return [
        {
            "index": assigned.layer.index,
            "name": assigned.layer.name,
            "other_names": list(assigned.layer.names[1:]),
            "type": assigned.layer.type,
            "shape": list(assigned.layer.shape),
            "quantized": not assigned.plan.is_full,
            "rules": list(assigned.rules),
            "note": assigned.note,
            "plan": _describe_plan(assigned.plan),
            "why_not_in_integers": assigned.plan.runs_in_integers(assigned.layer.type),
        }
        for assigned in layers
    ]


def _describe_plan(plan: Plan) -> dict[str, Any]:
    """Each product's operands in words; None where it is straight-through."""
    return {
        name: {operand: spec.as_words() for operand, spec in operands_of(product).items()}
        if product
        else None
        for name, product in ((name, getattr(plan, name)) for name in PRODUCTS)
    }
