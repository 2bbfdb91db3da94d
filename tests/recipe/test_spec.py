"""TensorSpec and SpecSettings: the words of one operand."""

from __future__ import annotations

import dataclasses
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lowbit.errors import LowbitError
from lowbit.numerics import FULL, Granularity, grid_names, observer_names, parse_grid, scaling_names
from lowbit.recipe import FULL_SPEC, PRODUCTS, Rule, TensorSpec, operands_of
from lowbit.recipe.spec import CLIPS, SpecSettings, parse_setting

INTEGER_GRIDS = [
    name for name in grid_names() if parse_grid(name).is_integer and parse_grid(name).has_every_integer
]


def test_words_become_values():
    spec = TensorSpec(grid="int4", granularity="WNH", observer="mse(50)", scaling="moving_average(0.99)")
    assert spec.grid is parse_grid("int4")
    assert spec.granularity == Granularity("NHW")
    assert (spec.observer.name, spec.observer.parameter) == ("mse", 50)
    assert (spec.scaling.name, spec.scaling.parameter) == ("moving_average", 0.99)


def test_values_and_words_are_the_same():
    assert TensorSpec(grid=parse_grid("int4"), granularity=Granularity("N")) == TensorSpec(
        grid="int4", granularity="N"
    )


def test_without_keys_it_is_full():
    assert TensorSpec() == FULL_SPEC
    assert FULL_SPEC.grid is FULL
    assert not FULL_SPEC.keeps_scales
    assert not FULL_SPEC.is_trained


def test_it_is_frozen_keyword_only_and_hashable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TensorSpec(grid="int8").grid = FULL
    with pytest.raises(TypeError):
        TensorSpec("int8")
    assert len({TensorSpec(grid="int8"), TensorSpec(grid="int8"), TensorSpec(grid="int4")}) == 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"grid": "int9"}, "2 to 8 bits"),
        ({"grid": "bfl6"}, 'did you mean "bf16"'),
        ({"grid": "int8", "granularity": "NK"}, "letters of NCHW"),
        ({"grid": "int8", "observer": "mxe"}, 'did you mean "mse"'),
        ({"grid": "int8", "scaling": "dinamic"}, 'did you mean "dynamic"'),
        ({"grid": "int8", "scaling": "moving_average(2)"}, "below 1"),
        ({"grid": "int8", "rounding": "stocastic"}, 'did you mean "stochastic"'),
        ({"grid": "int8", "clip": "PACT"}, 'did you mean "pact"'),
        ({"grid": "int8", "rotation": "hadamard(3)"}, "a power of two from 2 to 64"),
        ({"grid": "int8", "samples": "3", "rounding": "stochastic"}, "samples is 1 or 2"),
        ({"grid": "int8", "samples": 2}, "stochastic alone"),
        ({"grid": "log4", "observer": "mse"}, "its observer is minmax"),
        ({"grid": "int8", "sign": "aut"}, 'did you mean "auto"'),
        ({"grid": "int8", "scaling": "learned", "rounding": "stochastic"}, "rounding nearest"),
        ({"grid": "uint8", "sign": "auto"}, "uint8 has chosen already"),
        ({"grid": "full", "clip": "pact"}, "grid full nothing is scaled or clipped, so clip"),
        ({"grid": "bf16", "granularity": "N", "observer": "mse"}, "so granularity, observer would have no"),
        ({"scaling": "learned"}, "choose an integer grid"),
        ({"grid": "int4", "clip": "pact", "observer": "clip_ratio"}, "use the observer minmax or mse"),
    ],
)
def test_what_does_not_go_together(keys, message):
    with pytest.raises(LowbitError, match=message.replace("(", r"\(")):
        TensorSpec(**keys)


@given(
    st.sampled_from(INTEGER_GRIDS),
    st.sets(st.sampled_from("NCHW")).map(lambda letters: "".join(letters) or "per-tensor"),
    st.sampled_from([*observer_names(), "percentile(99.5)", "mse(7)"]),
    st.sampled_from([*scaling_names(), "moving_average(0.123)", "window(5)"]),
    st.sampled_from(CLIPS),
)
def test_its_words_give_it_back(grid, granularity, observer, scaling, clip):
    clip = "none" if observer == "clip_ratio" else clip
    spec = TensorSpec(grid=grid, granularity=granularity, observer=observer, scaling=scaling, clip=clip)
    assert TensorSpec(**spec.as_words()) == spec
    assert str(spec).split()[0] == grid
    assert str(spec.granularity) in str(spec)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "full"),
        ({"grid": "bf16"}, "bf16"),
        ({"grid": "int8"}, "int8 per-tensor"),
        ({"grid": "int4", "granularity": "N", "observer": "mse"}, "int4 N mse"),
        ({"grid": "int4", "sign": "auto", "scaling": "learned"}, "int4/uint4 per-tensor learned"),
        (
            {"grid": "int4", "granularity": "NHW", "rounding": "stochastic", "observer": "minmax"},
            "int4 NHW stochastic",
        ),
        (
            {"grid": "int8", "scaling": "moving_average", "clip": "pact"},
            "int8 per-tensor moving_average pact",
        ),
    ],
)
def test_as_text(keys, text):
    assert str(TensorSpec(**keys)) == text


def test_what_is_kept_and_what_is_trained():
    assert not TensorSpec(grid="int8", scaling="dynamic").keeps_scales
    for scaling in ("moving_average", "window", "learned", "fixed"):
        assert TensorSpec(grid="int8", scaling=scaling).keeps_scales
    assert TensorSpec(grid="int8", scaling="learned").is_trained
    assert TensorSpec(grid="int8", clip="pact").is_trained
    assert not TensorSpec(grid="int8", scaling="fixed").is_trained


def test_a_setting_has_one_spelling():
    assert str(parse_setting("granularity", "CN")) == "NC"
    assert str(parse_setting("scaling", "moving_average(0.9)")) == "moving_average"


def test_the_keys_are_those_of_a_spec():
    assert list(SpecSettings.model_fields) == [field.name for field in fields(TensorSpec)]


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_operands_are_those_of_the_products(name):
    rule = Rule(**{name: {operand: {"grid": "int8"} for operand in operands_of(PRODUCTS[name]())}})
    assert [f"{name}.{operand}" for operand in operands_of(PRODUCTS[name]())] == sorted(
        key for key, _ in rule.given()
    )


def test_words_are_kept_in_their_one_spelling():
    settings = SpecSettings(granularity="WHN", scaling="moving_average(0.9)", observer=" mse ( 50 ) ")
    words = {"granularity": "NHW", "observer": "mse(50)", "scaling": "moving_average"}
    assert {key: str(value) for key, value in settings.given().items()} == words
    assert settings.model_dump(exclude_unset=True) == words
    assert SpecSettings(**settings.given()) == settings  # values are taken as they are


@pytest.mark.parametrize("values", [{"grid": 8}, {"grid": None}, {"clip": True}, {"granularity": ["N"]}])
def test_a_word_is_text(values):
    with pytest.raises(ValidationError, match="valid string"):
        SpecSettings(**values)


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        SpecSettings(grid="int8").grid = "int4"


def test_empty_settings_are_a_mistake():
    with pytest.raises(ValidationError, match="empty; give at least one of grid"):
        SpecSettings()
