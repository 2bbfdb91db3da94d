from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.numerics.spec_parser import join_word, split_word

NAMES = ["kl", "mse", "percentile"]


@pytest.mark.parametrize(
    ("word", "parts"),
    [("kl", ("kl", None)), ("mse(50)", ("mse", 50.0)), (" percentile ( 99.9 ) ", ("percentile", 99.9))],
)
def test_reads(word, parts):
    assert split_word("observer", word, NAMES) == parts


@pytest.mark.parametrize("number", [1.0, 50, 99.9, 99.999, 0.1, 10000])
def test_writes_what_it_reads(number):
    word = join_word("mse", number, None)
    assert split_word("observer", word, NAMES) == ("mse", number)
    assert ".0)" not in word
    assert join_word("mse", number, number) == "mse"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("mze", 'unknown observer "mze": did you mean "mse"'),
        ("mse(fifty)", '"fifty" is not a number'),
        ("mse()", '"" is not a number'),
        ("mse(nan)", '"nan" is not a number'),
        ("mse(1", r'unknown observer "mse\(1"'),
        (8, r"observer must be a word \(kl, mse, percentile\), not 8"),
        (None, "not None"),
    ],
)
def test_mistakes(word, message):
    with pytest.raises(LowbitError, match=message):
        split_word("observer", word, NAMES)
