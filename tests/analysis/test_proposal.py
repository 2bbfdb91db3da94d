"""The recipe that is written."""

from __future__ import annotations

from lowbit.analysis import proposed_recipe
from lowbit.nn import preparation_of, prepare
from lowbit.recipe import dump_recipe, load_recipe, make_recipe
from tests.support.commands import W4A4G4
from tests.support.tiny_net import build_tiny


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
