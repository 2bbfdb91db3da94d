"""A recipe with the bits that were proposed, one rule for all layers that get the same."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lowbit.layers.prepare import Preparation
from lowbit.recipe import Recipe
from lowbit.recipe.plan import Plan, operands_of
from lowbit.recipe.rules import Rule


def proposed_recipe(preparation: Preparation, bits: Mapping[str, int]) -> Recipe:
    """The recipe of a prepared model with rules added for the layers whose bits change.

    Weights and inputs of all products get as many; gradients keep theirs.

    proposed_recipe(preparation_of(model), {"conv1": 6})
    """
    groups: dict[str, tuple[dict, list[str]]] = {}
    for assigned in preparation.layers:
        wanted = bits.get(assigned.layer.name)
        settings = {} if wanted is None else _settings(assigned.plan, wanted)
        if settings:
            _, names = groups.setdefault(str(settings), (settings, []))
            names.append(assigned.layer.name)
    rules = [Rule(match={"name": names}, **settings) for settings, names in groups.values()]
    return preparation.recipe.model_copy(update={"rules": [*preparation.recipe.rules, *rules]})


def _settings(plan: Plan, bits: int) -> dict[str, dict[str, dict[str, str]]]:
    """What a rule must say so that the operands have so many bits; what they have already is left out."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for product in plan.products():
        for operand, spec in operands_of(product).items():
            if spec.grid.is_integer and operand != "grad_output" and spec.grid.bits != bits:
                grid = re.sub(r"\d+", str(bits), spec.grid.name)
                found.setdefault(product.name, {})[operand] = {"grid": grid}
    return found
