from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.numerics import Calibrated, MovingAverage, Window, parse_scaling, scaling_names


def test_words():
    assert scaling_names() == ["dynamic", "fixed", "hindsight", "learned", "moving_average", "window"]
    for word in (*scaling_names(), "moving_average(0.99)", "window(100)"):
        assert str(parse_scaling(word)) == word
    assert parse_scaling("moving_average(0.9)") == parse_scaling("moving_average")


def test_states():
    assert parse_scaling("dynamic").new_state() is None
    assert parse_scaling("learned").new_state() is None
    assert isinstance(parse_scaling("fixed").new_state(), Calibrated)
    average, window = (parse_scaling(word).new_state() for word in ("moving_average", "window"))
    assert isinstance(average, MovingAverage) and average.rate == 0.9
    assert isinstance(window, Window) and window.size == 10000
    assert parse_scaling("window(7)").new_state().size == 7
    assert parse_scaling("fixed").new_state() is not parse_scaling("fixed").new_state()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("moving-average", 'unknown scaling "moving-average": did you mean "moving_average"'),
        ("dynamic(3)", r'scaling "dynamic\(3\)": dynamic takes no number'),
        ("moving_average(1)", "the rate, at least 0 and below 1"),
        ("window(0)", "a whole number of batches, at least 1"),
        ("window(2.5)", "a whole number of batches"),
        (0.9, "scaling must be a word"),
    ],
)
def test_mistakes(word, message):
    with pytest.raises(LowbitError, match=message):
        parse_scaling(word)
