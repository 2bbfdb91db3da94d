"""The recipe: rules, settings of the model as a whole, plans in words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle import nn
from pydantic import ValidationError

from lowbit.errors import LowbitError
from lowbit.models import build_model
from lowbit.recipe import (
    FULL_SPEC,
    Plan,
    Recipe,
    TensorSpec,
    describe_layers,
    make_recipe,
)
from lowbit.recipe.recipe import BatchNorm, CalibrationSettings, Pact

W8 = {"weight": {"grid": "int8", "granularity": "N"}}


def _chain(count: int = 4) -> nn.Layer:
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))


def _forward(recipe: Recipe, layer: str, model: nn.Layer | None = None):
    return recipe.plans(model or _chain())[layer].forward


def test_every_layer_has_a_plan():
    plans = Recipe(rules=[{"forward": W8}]).plans(build_model("resnet20", 10))
    assert len(plans) == 20
    expected = TensorSpec(grid="int8", granularity="N")
    assert all(plan.forward.weight == expected and plan.forward.input == FULL_SPEC for plan in plans.values())
    assert all(plan.is_straight_through for plan in plans.values())


def test_later_rules_override_key_by_key():
    recipe = Recipe(
        rules=[
            {"forward": {"weight": {"grid": "int4", "granularity": "N", "scaling": "learned"}}},
            {"match": {"index": [0, -1]}, "forward": {"weight": {"grid": "int8"}}},
            {"match": {"index": -1}, "forward": {"weight": {"granularity": "per-tensor"}}},
        ]
    )
    assert [str(_forward(recipe, name).weight) for name in "0123"] == [
        "int8 N learned",
        "int4 N learned",
        "int4 N learned",
        "int8 per-tensor learned",
    ]


def test_what_went_with_another_grid_rests_on_full():
    rules = [
        {"forward": {"input": {"grid": "int4", "scaling": "learned", "clip": "pact"}}},
        {"match": {"index": 0}, "forward": {"input": {"grid": "full"}}},
        {"match": {"index": 1}, "forward": {"input": {"grid": "bf16"}}},
        {"match": {"index": [0, 1, 2]}, "forward": {"input": {"observer": "mse"}}},
    ]
    recipe = Recipe(rules=rules)
    assert _forward(recipe, "0").input == FULL_SPEC
    assert _forward(recipe, "1").input == TensorSpec(grid="bf16")
    assert str(_forward(recipe, "2").input) == "int4 per-tensor mse(50) learned pact"
    again = Recipe(rules=[*rules, {"match": {"index": 0}, "forward": {"input": {"grid": "int8"}}}])
    assert str(_forward(again, "0").input) == "int8 per-tensor mse(50) learned pact"
    skipped = Recipe(rules=[*rules[:1], {"skip": True}, {"forward": {"input": {"grid": "int8"}}}])
    assert str(_forward(skipped, "0").input) == "int8 per-tensor"


def test_full_and_how_to_scale_in_one_rule():
    base = {"forward": {"input": {"grid": "int4"}}}
    both = {"match": {"index": 1}, "forward": {"input": {"grid": "full", "scaling": "learned"}}}
    with pytest.raises(LowbitError) as error:
        Recipe(rules=[base, both]).plans(_chain())
    assert "forward.input: on the grid full nothing is scaled or clipped, so scaling" in str(error.value)


def test_the_three_products_are_set_on_their_own():
    gradient = {"grid": "int4", "granularity": "NHW", "rounding": "stochastic"}
    recipe = Recipe(rules=[{"forward": W8}, {"match": {"index": 1}, "grad_input": {"grad_output": gradient}}])
    plans = recipe.plans(_chain())
    assert plans["0"].grad_input is None
    assert str(plans["1"].grad_input.grad_output) == "int4 NHW stochastic"
    assert plans["1"].grad_input.weight == FULL_SPEC
    assert plans["1"].grad_weight is None


def test_skip_and_begin_again():
    recipe = Recipe(
        rules=[
            {"forward": W8},
            {"match": {"index": [0, 1]}, "skip": True},
            {"match": {"index": 1}, "forward": {"weight": {"grid": "int4"}}},
        ]
    )
    first, second, third, _ = recipe.assign(_chain())
    assert first.plan.is_full and first.note == "skipped by rule 2" and first.rules == (1, 2)
    assert str(second.plan.forward.weight) == "int4 per-tensor" and second.note == ""
    assert str(third.plan.forward.weight) == "int8 N" and third.rules == (1,)


def test_layers_that_no_rule_is_about():
    first, second, *_ = Recipe(rules=[{"match": {"index": 1}, "forward": W8}]).assign(_chain())
    assert first.plan == Plan() and first.note == "no rule is about it"
    assert not second.plan.is_full and second.note == ""


def test_skip_quant_wins_over_rules_and_keeps_its_number():
    model = _chain()
    model[1].skip_quant = True
    recipe = Recipe(rules=[{"match": {"index": [1, 2]}, "forward": W8}])
    plans = recipe.assign(model)
    assert [assigned.plan.is_full for assigned in plans] == [True, True, False, True]
    assert plans[1].note == "skip_quant"


@pytest.mark.parametrize(
    ("match", "message"),
    [
        (
            {"name": "layer1"},
            'rule 2: it has no effect: no layer is named "layer1"; its layers are 0, 1, 2, 3',
        ),
        ({"index": 4}, "rule 2: it has no effect: there is no layer 4"),
        ({"type": "Conv2D"}, "rule 2: it has no effect: no layer has type Conv2D"),
    ],
)
def test_a_rule_that_matches_nothing(match, message):
    with pytest.raises(LowbitError) as error:
        Recipe(rules=[{"forward": W8}, {"match": match, "skip": True}]).plans(_chain())
    assert message in str(error.value)


def test_settings_that_do_not_go_together_name_the_layer_and_its_rules():
    recipe = Recipe(
        rules=[
            {"forward": {"input": {"grid": "int8", "granularity": "N"}}},
            {"match": {"index": 2}, "forward": {"input": {"scaling": "learned"}}},
        ]
    )
    with pytest.raises(LowbitError) as error:
        recipe.plans(_chain())
    assert str(error.value).startswith(
        'the plan of layer "2" (from rule 1, rule 2): forward.input: scaling le'
    )
    with pytest.raises(
        LowbitError, match=r"\(from rule 1\): forward.weight: on the grid full nothing is scaled"
    ):
        Recipe(rules=[{"forward": {"weight": {"scaling": "learned"}}}]).plans(_chain())


def test_only_the_rules_about_the_operand_are_named():
    recipe = Recipe(
        rules=[
            {"forward": {"weight": {"grid": "int8"}}},
            {"forward": {"input": {"grid": "int8", "granularity": "N"}}},
            {"grad_input": {"weight": {"grid": "int8"}}},
            {"forward": {"input": {"scaling": "fixed"}}},
        ]
    )
    with pytest.raises(LowbitError, match=r"\(from rule 2, rule 4\): forward\.input: scaling fixed"):
        recipe.plans(_chain())


@pytest.mark.parametrize("settings", [{"scaling": "fixed"}, {"sign": "auto"}])
def test_what_calibration_finds_out_needs_calibration(settings):
    rules = [{"forward": {"input": {"grid": "int8", **settings}}}]
    with pytest.raises(LowbitError, match=r"which calibration finds out; add calibration: {steps: 20}"):
        Recipe(rules=rules).plans(_chain())
    assert Recipe(rules=rules, calibration={"steps": 1}).plans(_chain())


@pytest.mark.parametrize(
    ("scaling", "needed"),
    [("dynamic", False), ("moving_average", True), ("learned", True), ("fixed", True)],
)
def test_low_precision_training_chooses_a_dynamic_sign_in_every_call(scaling, needed):
    rules = [
        {"forward": {"input": {"grid": "int8", "sign": "auto", "scaling": scaling}}},
        {"grad_weight": {"grad_output": {"grid": "int8", "rounding": "stochastic"}}},
    ]
    if needed:
        with pytest.raises(LowbitError, match=r"\(from rule 1\): forward.input: it has .* finds out"):
            Recipe(rules=rules).plans(_chain())
    else:
        assert Recipe(rules=rules).plans(_chain())["0"].forward.input.sign == "auto"


def test_a_fixed_weight_needs_no_batches():
    assert Recipe(rules=[{"forward": {"weight": {"grid": "int8", "scaling": "fixed"}}}]).plans(_chain())


KEYS = {
    "grid": st.sampled_from(["int2", "int8", "int4-narrow", "uint3"]),
    "granularity": st.sampled_from(["per-tensor", "N", "NC"]),
    "observer": st.sampled_from(["minmax", "clip_ratio(0.75)", "mse", "percentile(99)"]),
}
SETTINGS = st.fixed_dictionaries({}, optional=KEYS).filter(bool)
RULES = st.lists(st.tuples(st.sets(st.integers(0, 3), min_size=1), SETTINGS), max_size=6)


@given(RULES)
def test_the_last_rule_that_says_something_has_its_way(rules):
    base = {"grid": "int8", "granularity": "per-tensor", "observer": "minmax"}
    recipe = Recipe(
        rules=[
            {"forward": {"weight": base}},
            *({"match": {"index": sorted(at)}, "forward": {"weight": said}} for at, said in rules),
        ]
    )
    plans = recipe.plans(_CHAIN)
    for index in range(4):
        expected = {
            key: next((said[key] for at, said in reversed(rules) if index in at and key in said), word)
            for key, word in base.items()
        }
        assert plans[str(index)].forward.weight == TensorSpec(**expected)


_CHAIN = _chain()


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([{"forward": {"weight": {"grid": "int4"}}}], False),
        ([{"forward": {"weight": {"grid": "int4"}}, "grad_input": {"weight": {"grid": "int4"}}}], False),
        ([{"grad_input": {"grad_output": {"grid": "full"}}}], False),
        ([{"grad_weight": {"grad_output": {"rounding": "stochastic"}}}], False),
        ([{"grad_weight": {"grad_output": {"grid": "log4"}}}], True),
        ([{"forward": {"input": {"grid": "int4"}}}, {"grad_input": {"grad_output": {"grid": "int8"}}}], True),
    ],
)
def test_whether_gradients_are_quantized(rules, expected):
    assert Recipe(rules=rules).quantizes_gradients is expected


def test_defaults_of_the_model_as_a_whole():
    assert CalibrationSettings().steps == 0
    assert BatchNorm() == BatchNorm(fold="export", freeze_after=None)
    assert Pact() == Pact(initial="data", learning_rate=1, weight_decay="1e-4")


def test_paddleslims_own_pact():
    assert Pact(initial=100, learning_rate=1000, weight_decay=0).initial == 100.0


@pytest.mark.parametrize("initial", ["dta", 0, -1, float("inf"), True, None])
def test_where_pact_cannot_start(initial):
    with pytest.raises(ValidationError):
        Pact(initial=initial)


@pytest.mark.parametrize("values", [{"fold": "never"}, {"freeze_after": -1}, {"freeze_after": 1.5}])
def test_batch_norm_limits(values):
    with pytest.raises(ValidationError):
        BatchNorm(**values)


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
