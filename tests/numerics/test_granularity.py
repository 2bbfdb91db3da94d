from __future__ import annotations

import itertools

import pytest

from lowbit.errors import LowbitError
from lowbit.numerics import Granularity, parse_granularity

EVERY = ["".join(letters) for n in range(1, 5) for letters in itertools.combinations("NCHW", n)]


@pytest.mark.parametrize("word", EVERY)
def test_letters_in_any_order_are_one_granularity(word):
    for order in itertools.permutations(word):
        assert parse_granularity("".join(order)) == Granularity(word)
    assert str(parse_granularity(word)) == word


def test_per_tensor():
    assert parse_granularity("per-tensor") == Granularity()
    assert str(Granularity()) == "per-tensor"
    assert parse_granularity(str(Granularity())) == Granularity()


@pytest.mark.parametrize(
    ("word", "shape", "layout", "scales", "axes"),
    [
        ("per-tensor", (16, 64, 7, 7), "NCHW", (1, 1, 1, 1), (0, 1, 2, 3)),
        ("N", (16, 64, 7, 7), "NCHW", (16, 1, 1, 1), (1, 2, 3)),
        ("NHW", (16, 64, 7, 7), "NCHW", (16, 1, 7, 7), (1,)),
        ("NCHW", (16, 64, 7, 7), "NCHW", (16, 64, 7, 7), ()),
        ("N", (8, 3, 5, 5), "CNHW", (1, 3, 1, 1), (0, 2, 3)),
        ("N", (64, 10), "CN", (1, 10), (0,)),
        ("C", (64, 10), "CN", (64, 1), (1,)),
        ("NHW", (32, 10), "NC", (32, 1), (1,)),
        ("HW", (32, 10), "NC", (1, 1), (0, 1)),
        ("NH", (2, 50, 10), "NHC", (2, 50, 1), (2,)),
        ("N", (), "", (), ()),
    ],
)
def test_shapes_and_axes(word, shape, layout, scales, axes):
    granularity = parse_granularity(word)
    assert granularity.scale_shape(shape, layout) == scales
    assert granularity.reduced_axes(layout) == axes


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nhw", 'unknown granularity "nhw": did you mean "NHW"'),
        ("WNN", 'granularity "WNN" names an axis twice: did you mean "NW"'),
        ("per_tensor", 'did you mean "per-tensor"'),
        ("channel", "it is per-tensor, or letters of NCHW"),
        ("", "it is per-tensor, or letters of NCHW"),
        (0, "unknown granularity 0: it is per-tensor"),
        (["N"], r"unknown granularity \['N'\]"),
    ],
)
def test_mistakes(word, message):
    with pytest.raises(LowbitError, match=message):
        parse_granularity(word)


def test_layouts_that_do_not_fit():
    with pytest.raises(ValueError, match=r'shape \[2, 3\] does not have the layout "NCHW"'):
        Granularity("N").scale_shape([2, 3], "NCHW")
    for layout in ("NN", "NT"):
        with pytest.raises(ValueError, match="different letters of NCHW"):
            Granularity("N").reduced_axes(layout)
    with pytest.raises(ValueError, match="use parse_granularity"):
        Granularity("WN")
