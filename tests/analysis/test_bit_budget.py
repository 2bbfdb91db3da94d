"""Bits under a budget."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.analysis import Budget, LayerCost, parse_budget, propose_bits, proposed_recipe
from lowbit.errors import LowbitError
from lowbit.nn import preparation_of, prepare
from lowbit.recipe import dump_recipe, load_recipe, make_recipe
from tests.support.commands import W4A4G4
from tests.support.tiny_net import build_tiny

LAYERS = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(2, 8), st.floats(-0.1, 10)), min_size=1, max_size=6
).map(lambda rows: [LayerCost(str(index), *row) for index, row in enumerate(rows)])


def _bits_of(layers: list[LayerCost], chosen: dict[str, int]) -> int:
    return sum(layer.count * chosen[layer.name] for layer in layers)


@given(layers=LAYERS, average=st.floats(2, 9))
def test_it_fits_and_no_further_bit_would(layers, average):
    chosen = propose_bits(layers, Budget(bits=average))
    weights = sum(layer.count for layer in layers)
    left = int(average * weights) - _bits_of(layers, chosen)
    assert left >= 0
    assert all(2 <= bits <= 8 for bits in chosen.values())
    assert all(layer.count > left for layer in layers if chosen[layer.name] < 8)


@given(cost=st.tuples(st.floats(1e-3, 10), st.floats(1e-3, 10)), average=st.floats(2, 8))
def test_of_two_layers_as_large_the_one_that_costs_more_has_no_fewer_bits(cost, average):
    layers = [LayerCost("a", 100, 4, cost[0]), LayerCost("b", 100, 4, cost[1])]
    chosen = propose_bits(layers, Budget(bits=average))
    assert (
        (chosen["a"] >= chosen["b"])
        if cost[0] > cost[1]
        else (chosen["a"] <= chosen["b"] or cost[0] == cost[1])
    )


def test_with_layers_of_one_size_nothing_is_better():
    layers = [LayerCost("a", 10, 4, 1.0), LayerCost("b", 10, 4, 0.1), LayerCost("c", 10, 4, 0.003)]

    def cost(chosen):
        return sum(
            layer.cost * 4.0 ** (layer.bits - bits) for layer, bits in zip(layers, chosen, strict=True)
        )

    found = propose_bits(layers, Budget(bits=4))
    every = [chosen for chosen in itertools.product(range(2, 9), repeat=3) if sum(chosen) <= 12]
    assert cost(found.values()) == min(map(cost, every))


def test_a_size_counts_what_is_not_quantized():
    layers = [LayerCost("a", 800, 4, 1.0)]
    assert propose_bits(layers, Budget(size=500)) == {"a": 5}
    assert propose_bits(layers, Budget(size=500), fixed_bits=8 * 100) == {"a": 4}
    with pytest.raises(LowbitError, match="at least 2bits, or 300B"):
        propose_bits(layers, Budget(size=250), fixed_bits=8 * 100)


@pytest.mark.parametrize(
    ("text", "budget"),
    [("4.5bits", Budget(bits=4.5)), ("4 bit", Budget(bits=4)), ("1.5MB", Budget(size=1_500_000))],
)
def test_budgets_are_read(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "4.5", "bits", "-1bits", "4 apples"])
def test_what_is_no_budget_is_an_error(text):
    with pytest.raises(LowbitError, match=r"4\.5bits"):
        parse_budget(text)


def test_the_recipe_gives_each_layer_its_bits_and_changes_nothing_else(model, tmp_path):
    recipe = proposed_recipe(preparation_of(model), {"first": 4, "left": 3, "right": 3, "late": 5})
    file = tmp_path / "recipe.yaml"
    file.write_text(dump_recipe(recipe))
    plans = load_recipe(file).plans(type(model)())
    before = {assigned.layer.name: assigned.plan for assigned in preparation_of(model).layers}
    bits = {
        name: (plan.forward.input.grid.bits, plan.forward.weight.grid.bits) for name, plan in plans.items()
    }
    assert bits == {
        **{"first": (4, 4), "left": (3, 3), "right": (3, 3), "twice": (4, 4), "late": (5, 5), "head": (4, 4)}
    }
    assert plans["first"] == before["first"]
    assert plans["left"].forward.weight.granularity == before["left"].forward.weight.granularity
    assert len(recipe.rules) == 3  # one more for each number of bits that is new


def test_operands_of_all_products_get_them_and_gradients_keep_theirs():
    model = prepare(build_tiny(), make_recipe(W4A4G4))
    quantized = preparation_of(model).quantized[0]
    plan = proposed_recipe(preparation_of(model), {quantized: 6}).plans(build_tiny())[quantized]
    assert plan.forward.weight.grid.bits == plan.grad_input.weight.grid.bits == 6
    assert plan.forward.input.grid.bits == plan.grad_weight.input.grid.bits == 6
    assert plan.grad_input.grad_output.grid.bits == plan.grad_weight.grad_output.grid.bits == 4
