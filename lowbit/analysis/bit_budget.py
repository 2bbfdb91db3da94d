"""Bits under a budget, by layer, as a recipe."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowbit.errors import LowbitError
from lowbit.nn.convert import Preparation
from lowbit.numerics.grid import FEWEST_BITS, MOST_BITS
from lowbit.recipe import Recipe
from lowbit.recipe.plan import Plan, operands_of
from lowbit.recipe.rules import Match, Rule

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "kib": 2**10, "mib": 2**20}


@dataclass(frozen=True)
class Budget:
    """Either bits per weight on average, or bytes for all weights."""

    bits: float | None = None
    size: int | None = None

    def __str__(self) -> str:
        return f"{self.bits:g} bits" if self.bits is not None else f"{self.size} bytes"


@dataclass(frozen=True)
class LayerCost:
    """A layer that may get other bits: how many weights, and what `bits` bits cost.

    The cost is the divergence of lowbit.analysis.sensitivity, or any number that goes as the squared error.
    """

    name: str
    count: int
    bits: int
    cost: float


def parse_budget(text: str) -> Budget:
    """Parse a budget: bits per weight on average, or the size of all weights.

    >>> parse_budget("4.5bits"), parse_budget("200KB")
    (Budget(bits=4.5, size=None), Budget(bits=None, size=200000))
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().casefold())
    count, unit = (float(found[1]), found[2]) if found else (0.0, "")
    if unit in ("bit", "bits"):
        return Budget(bits=count)
    if unit in _UNITS:
        return Budget(size=int(count * _UNITS[unit]))
    raise LowbitError(f'a budget is like "4.5bits" (per weight, on average) or "200KB"; got "{text}"')


def propose_bits(layers: Sequence[LayerCost], budget: Budget, *, fixed_bits: int = 0) -> dict[str, int]:
    """The bits of each layer, from 2 to 8, whose weights fit the budget together.

    A bit more makes the squared error of rounding four times smaller, so the cost of a layer is taken to be
    cost · 4^(bits - b) at b bits. All start with 2, and the next bit goes where it saves most cost for its
    size. `fixed_bits` are those of the weights that stay as they are; they count against a size.

    >>> propose_bits([LayerCost("a", 10, 4, 1.0), LayerCost("b", 10, 4, 0.001)], Budget(bits=4))
    {'a': 6, 'b': 2}
    """
    weights = sum(layer.count for layer in layers)
    total = int(budget.bits * weights) if budget.bits is not None else 8 * (budget.size or 0) - fixed_bits
    left = total - FEWEST_BITS * weights
    if left < 0:
        least = -(-(FEWEST_BITS * weights + fixed_bits) // 8)
        raise LowbitError(
            f"{budget} are fewer than {FEWEST_BITS} bits a weight: give at least {FEWEST_BITS}bits, or "
            f"{least}B, which counts what is not quantized, too"
        )
    # Layers without a measured cost are ordered by size: they get a small cost.
    smallest = max(max((layer.cost for layer in layers), default=0.0) * 1e-4, 1e-9)
    chosen = {layer.name: FEWEST_BITS for layer in layers}
    waiting = [(-_saved(layer, FEWEST_BITS, smallest), index) for index, layer in enumerate(layers)]
    heapq.heapify(waiting)
    while waiting:
        _, index = heapq.heappop(waiting)
        layer = layers[index]
        if layer.count > left:
            continue  # nor will it fit later
        left -= layer.count
        chosen[layer.name] += 1
        if chosen[layer.name] < MOST_BITS:
            heapq.heappush(waiting, (-_saved(layer, chosen[layer.name], smallest), index))
    return chosen


def _saved(layer: LayerCost, bits: int, smallest: float) -> float:
    """The cost that one bit more than `bits` takes away, for each weight."""
    at = max(layer.cost, smallest) * 4.0 ** (layer.bits - bits)
    return 0.75 * at / layer.count


# The proposed bits as a recipe.


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
    rules = [Rule(match=Match(name=names), **settings) for settings, names in groups.values()]
    return preparation.recipe.model_copy(update={"rules": [*preparation.recipe.rules, *rules]})


def _settings(plan: Plan, bits: int) -> dict[str, dict[str, dict[str, str]]]:
    """The settings of a rule that give the operands `bits` bits, without those they have already."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for product in plan.products():
        for operand, spec in operands_of(product).items():
            if spec.grid.is_integer and operand != "grad_output" and spec.grid.bits != bits:
                found.setdefault(product.name, {})[operand] = {"grid": spec.grid.in_bits(bits).name}
    return found
