from __future__ import annotations

from dataclasses import fields

import pytest
from pydantic import ValidationError

from lowbit.recipe import PRODUCTS, Rule, TensorSpec, operands_of
from lowbit.recipe.recipe import BatchNorm, Calibration, Pact, SpecSettings


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
    assert settings.given() == {
        "granularity": "NHW",
        "observer": "mse(50)",
        "scaling": "moving_average",
    }


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


def test_defaults_of_the_model_as_a_whole():
    assert Calibration().steps == 0
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
