"""Observers: the registry, minmax and mse."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.errors import LowbitError
from lowbit.numerics import Observer, observer_names, pact_clip, parse_grid, parse_observer
from tests.support import numerics_twin as twin
from tests.support.numerics_twin import (
    F32,
    HUGE,
    INTEGER_GRIDS,
    assert_same_bits,
    every_bit_pattern,
    grids,
    ordinary,
)

INT4 = parse_grid("int4")


@given(x=every_bit_pattern, grid=grids)
@settings(max_examples=100)
def test_minmax_equals_the_twin(x, grid):
    found = parse_observer("minmax")(paddle.to_tensor(x), grid, (0,)).numpy()
    assert_same_bits(found, twin.scale_from_range(twin.minmax_range(x, (0,)), grid))


@pytest.mark.parametrize("ratio", [0.3, 0.5, 1.0])
def test_clip_ratio_is_a_share_of_minmax(ratio):
    x = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    grid, t = parse_grid("int4"), paddle.to_tensor(x)
    found = parse_observer(f"clip_ratio({ratio})").range(t, grid, (1,)).numpy()
    assert_same_bits(found, twin.minmax_range(x, (1,)) * np.float32(ratio))
    bound = paddle.to_tensor([0.25])  # of PACT: values are clipped first
    found = parse_observer(f"clip_ratio({ratio})").range(t, grid, (1,), bound=bound).numpy()
    assert_same_bits(found, np.full((3, 1), np.float32(0.25) * np.float32(ratio)))


@pytest.mark.parametrize(
    "word",
    [
        *("minmax", "clip_ratio", "clip_ratio(0.75)", "mse", "mse(50)", "percentile", "percentile(99.9)"),
        *("kl", "hist", "sensitivity"),
    ],
)
def test_words_and_back(word):
    observer = parse_observer(word)
    assert str(observer) == word and parse_observer(str(observer)) == observer
    assert observer.name in observer_names()


def test_defaults():
    assert parse_observer("mse(1)") == Observer("mse", 1) and parse_observer("mse") == Observer("mse")
    assert str(parse_observer("percentile(99.99)")) == "percentile"
    assert observer_names() == ["clip_ratio", "hist", "kl", "minmax", "mse", "percentile", "sensitivity"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("min_max", 'unknown observer "min_max": did you mean "minmax"'),
        ("abs_max", 'unknown observer "abs_max"'),
        ("minmax(3)", r'observer "minmax\(3\)": minmax takes no number'),
        ("clip_ratio(0)", "the number in brackets is a share of the largest magnitude, from 0.01 to 1"),
        (
            "clip_ratio(1.5)",
            "the number in brackets is a share of the largest magnitude, from 0.01 to 1",
        ),
        ("mse(0)", "the number in brackets is iterations, from 1 to 50"),
        ("mse(2.5)", "iterations, from 1 to 50"),
        ("percentile(101)", "a percentage, from 50 to 100"),
        (99.9, r"a word \(clip_ratio, hist, kl, minmax, mse, percentile, sensitivity\), not 99.9"),
    ],
)
def test_mistakes(word, message):
    with pytest.raises(LowbitError, match=message):
        parse_observer(word)


@pytest.mark.parametrize("word", ["minmax", "clip_ratio", "mse", "mse(50)", "percentile", "kl", "hist"])
def test_what_all_observers_have_in_common(word):
    observer = parse_observer(word)
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((2, 3, 4, 5), dtype=F32))
    x.stop_gradient = False
    whole = observer.range(x, INT4, (2, 3))
    assert list(whole.shape) == [2, 3, 1, 1] and whole.dtype == paddle.float32 and whole.stop_gradient
    # A group's range does not depend on the other groups.
    for n in range(2):
        for c in range(3):
            part = observer.range(x[n : n + 1, c : c + 1], INT4, (2, 3)).numpy()
            assert_same_bits(part, whole.numpy()[n : n + 1, c : c + 1])
    per_tensor = observer(x, INT4, (0, 1, 2, 3))
    assert list(per_tensor.shape) == [1, 1, 1, 1] and per_tensor.item() > 0
    assert list(observer(x, INT4, ()).shape) == [2, 3, 4, 5]
    # Nothing seen: a range of 0, a scale of 1.
    empty = observer(x[:0], INT4, (0, 2, 3))
    assert empty.flatten().tolist() == [1.0, 1.0, 1.0]
    for dtype in ("float16", "float64"):
        assert observer(x.cast(dtype), INT4, (1,)).dtype == paddle.float32


@pytest.mark.parametrize("observer", ["minmax", "clip_ratio", "mse", "percentile", "kl", "hist"])
@pytest.mark.parametrize("word", ["int4", "uint4"])
@pytest.mark.parametrize("bound", [[0.9], [[0.4], [2.0]]])
def test_a_bound_clips_before_the_observer_looks(observer, word, bound):
    grid, bound = parse_grid(word), paddle.to_tensor(bound)
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((2, 500)).astype(np.float32))
    clipped = pact_clip(x, bound, signed=grid.signed)
    range_ = parse_observer(observer).range
    assert range_(x, grid, (1,), bound=bound).tolist() == range_(clipped, grid, (1,)).tolist()


@given(x=ordinary, grid=grids, turns=st.sampled_from([1, 2, 50]))
@settings(max_examples=150)
def test_equals_the_twin_to_the_last_bit(x, grid, turns):
    found = parse_observer(f"mse({turns})").range(paddle.to_tensor(x), grid, (1,)).numpy()
    assert_same_bits(found, twin.mse_range(x, grid, (1,), turns))


@given(x=every_bit_pattern, grid=grids)
@settings(max_examples=100)
def test_equals_the_twin_for_any_bits(x, grid):
    found = parse_observer("mse").range(paddle.to_tensor(x[None]), grid, (1,)).numpy()
    expected = twin.mse_range(x[None], grid, (1,), 1)
    finite = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), finite)
    assert_same_bits(found[finite], expected[finite])


def test_the_order_of_the_values_does_not_matter():
    x = np.random.default_rng(0).standard_normal(100_000, dtype=F32)
    grid, observer = parse_grid("int4"), parse_observer("mse(50)")
    ranges = [observer.range(paddle.to_tensor(v), grid, (0,)).item() for v in (x, x[::-1].copy(), np.sort(x))]
    assert len(set(ranges)) == 1


def _error(x: np.ndarray, scale: float, grid) -> float:
    wide = x.astype(np.float64)
    return float(((np.clip(np.rint(wide / scale), grid.lowest, grid.highest) * scale - wide) ** 2).sum())


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
def test_each_turn_makes_the_error_smaller(grid):
    x = np.random.default_rng(1).standard_normal(5000).astype(F32)
    x = x if grid.signed else np.abs(x)
    words = ["minmax", "mse", "mse(3)", "mse(50)"]
    errors = [_error(x, parse_observer(w)(paddle.to_tensor(x), grid, (0,)).item(), grid) for w in words]
    assert all(b <= a * (1 + 1e-6) for a, b in pairwise(errors))
    assert errors[-1] < errors[0]


def test_close_to_the_formula():
    x = np.random.default_rng(2).standard_normal(1000).astype(F32)
    grid = parse_grid("uint8")
    start = np.abs(x).max() / 255
    q = np.clip(np.rint(x / start), 0, 255)
    found = parse_observer("mse")(paddle.to_tensor(x), grid, (0,)).item()
    assert found == pytest.approx(float(x @ q) / float(q @ q), rel=1e-5)


def test_a_large_tensor_does_not_overflow():
    grid = parse_grid("uint8")
    x = paddle.full([1 << 22], float(HUGE) / 2, "float32")
    assert parse_observer("mse").range(x, grid, (0,)).item() == pytest.approx(float(HUGE) / 2, rel=1e-6)
