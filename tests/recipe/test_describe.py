from __future__ import annotations

import json

from lowbit.recipe import Recipe, describe_layers, make_recipe


def test_plans_in_words(tiny):
    tiny.conv.skip_quant = True
    gradient = {"grid": "int4", "granularity": "NC", "rounding": "stochastic"}
    recipe = Recipe(
        rules=[{"forward": {"weight": {"grid": "int8"}}, "grad_weight": {"grad_output": gradient}}]
    )
    conv, head = json.loads(json.dumps(describe_layers(recipe.assign(tiny))))
    assert conv["quantized"] is False and conv["note"] == "skip_quant" and conv["rules"] == []
    assert (head["index"], head["name"], head["other_names"]) == (1, "head", [])
    assert (head["type"], head["shape"], head["rules"]) == ("Linear", [128, 4], [1])
    assert head["quantized"] is True
    assert head["plan"]["grad_input"] is None
    assert head["plan"]["grad_weight"]["grad_output"]["rounding"] == "stochastic"
    assert head["why_not_in_integers"]["forward"] == "input is on the grid full"


def test_the_words_make_the_same_plans(tiny):
    recipe = make_recipe({"weight_bits": 4, "activation_quantize_type": "range_abs_max", "window_size": 7})
    described = describe_layers(recipe.assign(tiny))
    rules = [{"match": {"index": entry["index"]}, "forward": entry["plan"]["forward"]} for entry in described]
    assert Recipe(rules=rules).plans(tiny) == recipe.plans(tiny)
