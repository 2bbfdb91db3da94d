from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from lowbit.config.base import Count, Integer, Number, Positive, Section, parse_number


class Kitchen(Section):
    cups: Count = 0
    plates: Positive = 1


number = TypeAdapter(Number)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1.0/255.0", 1 / 255),
        ("1/255", 1 / 255),
        (" 1 / 4 ", 0.25),
        ("-1/2", -0.5),
        ("1e-4", 1e-4),
        ("1E-4/2", 5e-5),
        ("0.5", 0.5),
        (3, 3.0),
        (2.5, 2.5),
    ],
)
def test_numbers_and_fractions(written, value):
    assert number.validate_python(written) == value


@pytest.mark.parametrize(
    "written",
    ["1/0", "1.0/255.0/2", "a/b", "", "1+1", "2**8", "__import__('os')", "../2", True, None, [1], {}],
)
def test_what_is_no_number(written):
    with pytest.raises(ValidationError):
        number.validate_python(written)


@pytest.mark.parametrize("written", [math.nan, math.inf, "nan", "inf", "-inf", "1e308/1e-308", 10**400])
def test_a_number_is_finite(written):
    with pytest.raises(ValidationError):
        number.validate_python(written)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(1e-3, 1e3))
def test_any_written_fraction(top, bottom):
    assert parse_number(f"{top}/{bottom}") == top / bottom


@given(st.text())
def test_text_is_a_number_or_a_value_error(text):
    try:
        assert isinstance(parse_number(text), float)
    except ValueError as error:
        assert "expected a number" in str(error)


@pytest.mark.parametrize("value", [True, False, 2.0, 2.5, "2", None, [2]])
def test_a_whole_number_is_nothing_else(value):
    with pytest.raises(ValidationError):
        TypeAdapter(Integer).validate_python(value)


def test_limits():
    assert Kitchen(cups=0, plates=1) == Kitchen()
    for wrong in ({"cups": -1}, {"plates": 0}):
        with pytest.raises(ValidationError):
            Kitchen(**wrong)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ValidationError, match='unknown key, did you mean "plates"'):
        Kitchen(plate=3)


def test_an_unknown_key_with_nothing_near_lists_all():
    with pytest.raises(ValidationError, match="unknown key, valid: cups, plates"):
        Kitchen(refrigerator=3)


def test_a_section_with_nothing_below_it_has_its_defaults():
    assert Kitchen.model_validate(None) == Kitchen()


def test_assignments_are_validated_too():
    kitchen = Kitchen()
    with pytest.raises(ValidationError):
        kitchen.cups = "many"
