"""Granularities, and reductions over the groups that share a scale."""

from __future__ import annotations

import itertools

import numpy as np
import paddle
import pytest

from lowbit.errors import LowbitError
from lowbit.numerics import Granularity, parse_granularity
from lowbit.numerics.granularity import (
    groups_as_rows,
    largest_magnitude,
    shape_of_scales,
    sum_groups,
    sum_to_shape,
)

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
        ("N", (2, 3, 4, 5, 6, 8), "NHHHWC", (2, 1, 1, 1, 1, 1), (1, 2, 3, 4, 5)),
        ("NHW", (2, 3, 4, 5, 8), "NHHWC", (2, 3, 4, 5, 1), (4,)),
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


X = np.random.default_rng(0).integers(-9, 9, (2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_reductions(axes):
    x = paddle.to_tensor(X)
    expected = np.abs(X).max(axis=axes, keepdims=True) if axes else np.abs(X)
    assert np.array_equal(largest_magnitude(x, axes).numpy(), expected)
    assert np.array_equal(
        sum_groups(x, axes, "float64").numpy(), X.sum(axis=axes, keepdims=True) if axes else X
    )
    assert shape_of_scales(X.shape, axes) == list(expected.shape)


@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_rows_are_in_the_order_of_the_scales(axes):
    rows, shape = groups_as_rows(paddle.to_tensor(X), axes, "kl")
    expected = np.abs(X).sum(axis=axes, keepdims=True) if axes else np.abs(X)
    assert np.array_equal(rows.sum(axis=1).reshape(shape), expected)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 1), (1, 3, 1), (2, 3, 4), (2, 1, 1)])
def test_sum_to_shape_is_the_gradient_of_broadcasting(shape):
    small = paddle.ones(list(shape))
    small.stop_gradient = False
    (small * paddle.to_tensor(X)).sum().backward()
    assert np.array_equal(sum_to_shape(paddle.to_tensor(X), list(shape)).numpy(), small.grad.numpy())
