from __future__ import annotations

import pytest
from pydantic import ValidationError

from lowbit.recipe.dialects.low_precision_blocks import Block, BlockKeys, Filter
from lowbit.recipe.settings import SpecSettings


def test_every_key_of_a_spec_can_be_set():
    keys = set(SpecSettings.model_fields) - {"grid", "rounding"} | {"qtype", "stochastic"}
    assert set(BlockKeys.model_fields) == keys


def test_words_are_those_of_a_spec():
    keys = BlockKeys(qtype="log4", granularity="CN", rotation="hadamard(16)", samples=2, stochastic=False)
    assert keys.words() == {
        "grid": "log4",
        "granularity": "NC",
        "rotation": "hadamard",
        "samples": "2",
        "rounding": "nearest",
    }
    assert BlockKeys().words() == {}


@pytest.mark.parametrize("bits", range(2, 9))
def test_qtypes(bits):
    assert Block(qtype=f"int{bits}").words() == {"grid": f"int{bits}"}
    with pytest.raises(ValidationError, match=f'write "int{bits}": where an input is never negative'):
        Block(qtype=f"uint{bits}")


def test_inputs_are_unsigned_where_they_are_never_negative():
    assert Block(qtype="int4").base_words(is_input=True)["sign"] == "auto"
    assert "sign" not in Block(qtype="int4").base_words(is_input=False)
    assert Block(qtype="int4", sign="fixed").base_words(is_input=True)["sign"] == "fixed"


@pytest.mark.parametrize(
    ("scaling", "observer"),
    [("dynamic", "mse"), ("moving_average", "mse"), ("fixed", "mse(50)"), ("learned", "mse(50)")],
)
def test_mse_takes_50_turns_when_it_calibrates_and_one_in_every_call(scaling, observer):
    block = Block(qtype="int4", scaling=scaling, observer="mse")
    assert block.base_words(is_input=False)["observer"] == observer
    assert Block(qtype="int4", scaling=scaling, observer="mse(3)").words()["observer"] == "mse(3)"
    there = Filter(id=0, observer="mse")
    assert Block(qtype="int4", scaling=scaling, filters=[there]).filter_words(there)["observer"] == observer
    switched = Block(qtype="int4", observer="mse", filters=[Filter(id=0, scaling=scaling)])
    assert switched.filter_words(switched.filters[0])["observer"] == observer


def test_a_filter_sets_what_it_says():
    block = Block(
        qtype="int4", observer="mse", filters=[Filter(id=0, observer="minmax"), Filter(id=1, scaling="fixed")]
    )
    assert block.filter_words(block.filters[0]) == {"observer": "minmax"}
    assert block.filter_words(block.filters[1]) == {"scaling": "fixed"}


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"id": 3}, {"index": 3}),
        ({"name": "fc"}, {"name": "*fc*"}),
        ({"name": "a[0]"}, {"name": "*a[[]0]*"}),
        ({"id": -1, "name": "fc"}, {"index": -1, "name": "*fc*"}),
    ],
)
def test_filters_in_lowbits_words(values, match):
    assert Filter(**values, qtype="full").match() == match


def test_no_filters():
    assert Block(qtype="int4", filters=None).filters == Block(qtype="int4").filters == []
