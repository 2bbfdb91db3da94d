import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.formatting import Section, as_text, duration, number, wrap

_NAME = "backbone.stages.3.blocks.12.attention.projection.convolution"
_WORDS = st.text("abcdefgh", min_size=1, max_size=20)
_NAMES = st.lists(_WORDS, min_size=1, max_size=8).map(".".join)
_NUMBERS = st.floats(-1e4, 1e4).map(number)


def pieces(text):
    """The parts of a text that may not be broken."""
    return re.findall(r"[^\s./_,\-]+", text)


@st.composite
def sections(draw):
    left, right = draw(st.integers(1, 3)), draw(st.integers(0, 12))
    columns = tuple(draw(_WORDS) for _ in range(left + right))
    row = st.tuples(*[_NAMES] * left, *[_NUMBERS] * right)
    rows = tuple(draw(st.lists(row, min_size=1, max_size=4)))
    return Section("A title of some words", columns, rows, left=left)


@given(sections(), st.sampled_from([40, 80, 120]))
def test_no_table_exceeds_the_width_or_breaks_a_word(section, width):
    text = as_text([section], width)
    assert max(map(len, text.splitlines())) <= width
    there = set(pieces(text))
    for row in (section.columns, *section.rows):
        for cell in row:
            assert set(pieces(cell)) <= there, cell


@given(sections())
def test_of_any_width_each_row_is_one_line(section):
    lines = as_text([section], None).splitlines()
    assert len(lines) == 2 + len(section.rows)
    for line, row in zip(lines[2:], section.rows, strict=True):
        assert line.split() == [word for cell in row for word in cell.split()]


def test_a_long_name_gets_a_line_of_its_own():
    section = Section("", ("layer", "bits"), ((_NAME, "4"), ("fc", "8")))
    assert as_text([section], 40).splitlines() == [
        "layer" + " " * 31 + "bits",
        "backbone.stages.3.blocks.12.attention.",
        "projection.convolution",
        " " * 39 + "4",
        "fc" + " " * 37 + "8",
    ]


def test_columns_for_wide_only():
    section = Section("", ("layer", "bits", "dead"), (("fc", "8", "3"),), wide=("dead",))
    assert as_text([section]) == "layer  bits\nfc        8"
    assert as_text([section], wide=True) == "layer  bits  dead\nfc        8     3"


def test_columns_that_do_not_fit_follow_below():
    columns = ("figure", *(f"a_long_run_name_{i}" for i in range(6)))
    text = as_text([Section("", columns, (("best top-1", *["98.12 %"] * 6),))], 40)
    assert text.count("best top-1") > 1 and max(map(len, text.splitlines())) <= 40
    assert text.count("98.12 %") == 6


def test_wide_characters_count_as_two_columns():
    assert as_text([Section("", ("类", "n"), (("数字", "1"), ("ab", "2")))]).splitlines()[1:] == [
        "数字  1",
        "ab    2",
    ]


@pytest.mark.parametrize(("value", "text"), [(2440, "2,440"), (999.96, "1,000"), (-0.5, "-0.500")])
def test_numbers(value, text):
    assert number(value) == text


def test_durations_carry_over():
    assert duration(59.97) == "1 min 0 s"
    assert duration(3599.6) == "1 h 0 min"


def test_wrap_keeps_short_lines():
    assert wrap("a b", None) == ["a b"] and wrap("a b", 3) == ["a b"]
