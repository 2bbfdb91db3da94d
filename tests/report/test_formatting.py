"""Figures as words."""

from __future__ import annotations

import pytest

from lowbit.report.formatting import NOTHING, decibels, number, percent, points, ratio, size


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (percent(0.98765), "98.77 %"),
        (size(999), "1.0 KB"),
        (size(2_500_000), "2.500 MB"),
        (number(5852.3, 3), "5852"),
        (number(0.0123456), "0.01235"),
        (points(-0.0056), "-0.56"),
        (points(0.00001), "0.00"),
        (points(0.01), "+1.00"),
        (ratio(2), "2.00x"),
        (decibels(-3.04), "-3.0 dB"),
    ],
)
def test_words(made, words):
    assert made == words


def test_what_there_is_not():
    assert {make(None) for make in (percent, points, ratio, size, number, decibels)} == {NOTHING}
