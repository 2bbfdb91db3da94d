"""The recipe: ordered rules that give every layer of a model its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paddle import nn
from pydantic import Field

from lowbit.errors import LowbitError
from lowbit.numerics import parse_grid
from lowbit.recipe.model_layers import ModelLayer, find_layers
from lowbit.recipe.plan import PRODUCTS, Plan
from lowbit.recipe.rules import Rule
from lowbit.recipe.settings import BatchNorm, Calibration, FrozenSection, Pact
from lowbit.recipe.spec import TensorSpec

# product -> operand -> key -> word
_Words = dict[str, dict[str, dict[str, str]]]
# What cannot be known before some batches were seen. A weight is there from the start.
_CALIBRATED = {"scaling": "fixed", "sign": "auto"}


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """A layer of a model with its plan, the numbers of the rules that made it, and why it is left alone."""

    layer: ModelLayer
    plan: Plan
    rules: tuple[int, ...] = ()
    note: str = ""


class Recipe(FrozenSection):
    """Rules in their order, later ones over earlier ones, and settings for the model as a whole.

    >>> recipe = Recipe(rules=[{"forward": {"weight": {"grid": "int8"}}}])
    >>> str(recipe.plans(nn.Sequential(nn.Linear(4, 2)))["0"].forward.weight)
    'int8 per-tensor'
    """

    rules: Annotated[list[Rule], Field(min_length=1)]
    calibration: Calibration = Calibration()
    batch_norm: BatchNorm = BatchNorm()
    pact: Pact = Pact()

    def plans(self, model: nn.Layer) -> dict[str, Plan]:
        """The plan of every Conv2D, Conv2DTranspose and Linear, by the layer's (first) name."""
        return {assigned.layer.name: assigned.plan for assigned in self.assign(model)}

    def assign(self, model: nn.Layer) -> list[LayerPlan]:
        """As `plans`, in the model's order, with each plan's origin; a rule without a layer is an error."""
        layers = find_layers(model)
        for number, rule in enumerate(self.rules, start=1):
            if why := self._why_not(rule, layers):
                raise LowbitError(f"{_name(number, rule)}: {why}")
        return [self._assign_one(layer, len(layers)) for layer in layers]

    def _why_not(self, rule: Rule, layers: list[ModelLayer]) -> str | None:
        if why := rule.match.why_unused(layers):
            return f"it has no effect: {why}"
        if not self.calibration.steps:
            for name, words in rule.given():
                for key, word in _CALIBRATED.items():
                    if words.get(key) == word and not name.endswith(".weight"):
                        return (
                            f"{name} has {key} {word}, which calibration finds out; "
                            "add calibration: {steps: 20}"
                        )
        return None

    def _assign_one(self, layer: ModelLayer, count: int) -> LayerPlan:
        if layer.left_alone:
            return LayerPlan(layer=layer, plan=Plan(), note=layer.left_alone)
        words: _Words = {}
        numbers: list[int] = []
        note = "no rule is about it"
        for number, rule in enumerate(self.rules, start=1):
            if not rule.match.matches(layer, count):
                continue
            numbers.append(number)
            if rule.skip:
                words, note = {}, f"skipped by rule {number}"
            else:
                note = ""
                _override(words, rule)
        try:
            return LayerPlan(layer=layer, plan=_plan_of(words), rules=tuple(numbers), note=note)
        except LowbitError as error:
            made = ", ".join(_name(number, self.rules[number - 1]) for number in numbers)
            raise LowbitError(f'the plan of layer "{layer.name}" (from {made}): {error}') from None


def _override(words: _Words, rule: Rule) -> None:
    for name, new in rule.given():
        product, operand = name.split(".")
        earlier = words.setdefault(product, {}).get(operand, {})
        # `grid: full` ends the matter: scales and the like that earlier rules chose go with the old grid.
        starts_anew = "grid" in new and not parse_grid(new["grid"]).is_integer
        words[product][operand] = new if starts_anew else earlier | new


def _plan_of(words: _Words) -> Plan:
    products = {}
    for product, operands in words.items():
        specs = {}
        for operand, keys in operands.items():
            try:
                specs[operand] = TensorSpec(**keys)
            except LowbitError as error:
                raise LowbitError(f"{product}.{operand}: {error}") from None
        products[product] = PRODUCTS[product](**specs)
    return Plan(**products)


def _name(number: int, rule: Rule) -> str:
    return f"{rule.place}: rule {number}" if rule.place else f"rule {number}"
