"""Figures as words."""

from __future__ import annotations

import pytest

from lowbit.report.words import NOTHING, decibels, number, percent, size


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (percent(0.98765), "98.77 %"),
        (size(999), "1.0 KB"),
        (size(2_500_000), "2.500 MB"),
        (number(5852.3, 3), "5852"),
        (number(0.0123456), "0.01235"),
        (decibels(-3.04), "-3.0 dB"),
    ],
)
def test_words(made, words):
    assert made == words


def test_what_there_is_not():
    assert {make(None) for make in (percent, size, number, decibels)} == {NOTHING}
