from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from lowbit.recipe import Recipe, dump_recipe, make_recipe
from lowbit.recipe.dialects.lowbit_yaml import read_recipe

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "grid": st.sampled_from(["int4", "uint8", "int8-narrow", "bf16", "full"]),
        "granularity": st.sampled_from(["per-tensor", "NHW", "CN"]),
        "observer": st.sampled_from(["mse", "mse(3)", "percentile(99.97)"]),
        "scaling": st.sampled_from(["dynamic", "moving_average(0.1)", "window(3)"]),
        "rounding": st.sampled_from(["nearest", "stochastic"]),
        "clip": st.sampled_from(["none", "pact"]),
        "sign": st.sampled_from(["fixed", "auto"]),
    },
).filter(bool)
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(min_size=1) | st.lists(st.text(min_size=1), min_size=1, max_size=2),
        "regex": st.sampled_from([".*", r"layer\d+\.conv[12]"]),
        "type": st.sampled_from(["Conv2D", ["Conv2D", "Linear"]]),
        "index": st.integers(-5, 5),
    },
)
RULES = st.fixed_dictionaries(
    {"match": MATCHES, "forward": st.fixed_dictionaries({"input": SETTINGS}, optional={"weight": SETTINGS})},
    optional={"grad_input": st.fixed_dictionaries({"grad_output": SETTINGS})},
) | st.just({"skip": True})
RECIPES = st.fixed_dictionaries(
    {"rules": st.lists(RULES, min_size=1, max_size=3)},
    optional={
        "calibration": st.fixed_dictionaries({"steps": st.integers(0, 99)}),
        "batch_norm": st.sampled_from([{"fold": "training"}, {"freeze_after": 100}]),
        "pact": st.sampled_from([{"initial": 100}, {"initial": "data", "learning_rate": "1e3"}]),
    },
)


@given(RECIPES)
def test_what_is_written_is_read_back(values):
    recipe = make_recipe(values)
    text = dump_recipe(recipe)
    assert make_recipe(yaml.safe_load(text)) == recipe
    assert dump_recipe(make_recipe(yaml.safe_load(text))) == text


def test_what_is_written_is_complete_and_says_no_more_of_rules_than_they_said():
    written = yaml.safe_load(dump_recipe(Recipe(rules=[{"forward": {"weight": {"grid": "int8"}}}])))
    assert written == {
        "rules": [{"forward": {"weight": {"grid": "int8"}}}],
        "calibration": {"steps": 0, "correct_bias": False},
        "batch_norm": {"fold": "export", "freeze_after": None},
        "pact": {"initial": "data", "learning_rate": 1.0, "weight_decay": 0.0001},
    }


def test_rules_remember_their_places():
    values = {"rules": [{"skip": True}, {"skip": True}]}
    recipe = read_recipe(values, {("rules", 0): "a.yaml:2", ("rules", 1): "a.yaml:3"}, "a.yaml")
    assert [rule.place for rule in recipe.rules] == ["a.yaml:2", "a.yaml:3"]
