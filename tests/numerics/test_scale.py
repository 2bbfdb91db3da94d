"""Scales from ranges, scalings by word, running ranges."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit.errors import LowbitError
from lowbit.numerics import (
    BF16,
    Calibrated,
    MovingAverage,
    Window,
    parse_grid,
    parse_scaling,
    scale_from_range,
    scaling_names,
)
from lowbit.numerics.scale import SMALLEST_SCALE, at_least_smallest, largest_scale
from tests.support import numerics_twin as twin
from tests.support.numerics_twin import (
    F32,
    HUGE,
    INTEGER_GRIDS,
    TINY,
    assert_same_bits,
    every_bit_pattern,
    grids,
)


@given(range_=every_bit_pattern.map(np.abs), grid=grids)
@settings(max_examples=200)
def test_equals_the_twin_to_the_last_bit(range_, grid):
    assert_same_bits(
        scale_from_range(paddle.to_tensor(range_), grid).numpy(), twin.scale_from_range(range_, grid)
    )


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
def test_the_ends(grid):
    range_ = F32([0, np.nan, np.inf, 1e-45, 1e-40, TINY, 1, HUGE])
    scale = scale_from_range(paddle.to_tensor(range_), grid).numpy()
    assert_same_bits(scale, twin.scale_from_range(range_, grid))
    assert scale[0] == 1 and np.isnan(scale[1:3]).all() and (scale[3:] >= TINY).all()
    for q in (grid.lowest, grid.highest):
        assert np.isfinite(F32(q) * scale[-1])


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
def test_the_largest_scale_is_the_largest(grid):
    steps = max(-grid.lowest, grid.highest)
    assert largest_scale(grid) * steps <= float(HUGE)
    with np.errstate(over="ignore"):
        above = np.nextafter(F32(largest_scale(grid)), F32("inf"))
    assert float(above) * steps > float(HUGE)


def test_a_learned_scale_as_it_is_used():
    x = paddle.to_tensor(F32([-1, 0, 1e-40, 2, np.inf, np.nan]))
    expected = F32([SMALLEST_SCALE] * 3 + [2, np.inf, np.nan])
    assert_same_bits(at_least_smallest(x).numpy(), expected)


def test_a_float_grid_has_no_scale():
    with pytest.raises(LowbitError, match="bf16 is not an integer grid"):
        scale_from_range(paddle.to_tensor([1.0]), BF16)


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
def test_scaling_mistakes(word, message):
    with pytest.raises(LowbitError, match=message):
        parse_scaling(word)


batches = st.lists(arrays(F32, (1, 3, 1, 1), elements=st.floats(0, 1000, width=32)), min_size=1, max_size=12)
MAKERS = [lambda: MovingAverage(0.9), lambda: Window(4), Calibrated]


def fed(state, ranges):
    for range_ in ranges:
        assert state.update(paddle.to_tensor(range_))
    return state


@given(ranges=batches, rate=st.sampled_from([0.0, 0.5, 0.9, 0.999]))
@settings(max_examples=60)
def test_moving_average_equals_the_twin(ranges, rate):
    count, accum, rate32 = F32(0), np.zeros_like(ranges[0]), F32(rate)
    for range_ in ranges:
        count, accum = rate32 * count + F32(1), rate32 * accum + range_
    assert_same_bits(fed(MovingAverage(rate), ranges).range().numpy(), accum / count)


@given(ranges=batches, size=st.integers(1, 8))
@settings(max_examples=60)
def test_window_is_the_largest_of_the_last(ranges, size):
    window = Window(size)
    for seen, range_ in enumerate(ranges, 1):
        assert window.update(paddle.to_tensor(range_))
        expected = np.max(ranges[max(0, seen - size) : seen], axis=0)
        assert_same_bits(window.range().numpy(), expected)


@given(ranges=batches)
@settings(max_examples=60)
def test_calibrated_is_the_mean(ranges):
    expected = np.sum(ranges, axis=0, dtype=np.float64) / len(ranges)
    np.testing.assert_allclose(fed(Calibrated(), ranges).range().numpy(), expected.astype(F32), rtol=1e-7)


@pytest.mark.parametrize("make", MAKERS)
def test_bad_batches_do_not_enter(make):
    clean, disturbed = make(), make()
    for value in (1.0, 3.0, 2.0):
        good = F32([value, 2 * value])
        clean.update(paddle.to_tensor(good))
        assert disturbed.update(paddle.to_tensor(good))
        for bad in (np.nan, np.inf):
            assert not disturbed.update(paddle.to_tensor(F32([bad, 1])))
    assert_same_bits(disturbed.range().numpy(), clean.range().numpy())
    assert (disturbed.entered, disturbed.left_out) == (3, 6)


@pytest.mark.parametrize("make", MAKERS)
@given(before=batches, after=batches)
@settings(max_examples=30)
def test_resumed_goes_on_exactly(make, before, after):
    whole = fed(make(), [*before, *after])
    first = fed(make(), before)
    first.update(paddle.full([1, 3, 1, 1], float("nan")))
    saved = first.state_dict()
    fed(first, after)  # what is saved does not change any more
    second = make()
    second.load_state_dict(saved)
    assert second.left_out == 1
    fed(second, after)
    assert_same_bits(second.range().numpy(), whole.range().numpy())
    assert second.entered == whole.entered


@pytest.mark.parametrize("make", MAKERS)
def test_before_the_first_batch(make):
    state = make()
    with pytest.raises(LowbitError, match="no finite batch has been seen: train or calibrate first"):
        state.range()
    fresh = make()
    fresh.load_state_dict(state.state_dict())
    assert fresh.entered == 0


@pytest.mark.parametrize("make", MAKERS)
def test_batches_of_zeros(make):
    state = fed(make(), [F32([0.0]), F32([0.0])])
    assert scale_from_range(state.range(), parse_grid("int8")).item() == 1


def test_one_number_for_the_whole_tensor():
    for make in MAKERS:
        state = fed(make(), [F32(2), F32(2)])
        assert state.range().shape == [] and state.range().item() == 2


def test_mistakes():
    with pytest.raises(
        LowbitError, match=r"rate of a moving average must be at least 0 and below 1, got 1\.5"
    ):
        MovingAverage(1.5)
    for size in (0, 2.5):
        with pytest.raises(LowbitError, match=f"size of a window must be a whole number.*got {size}"):
            Window(size)
    state = fed(MovingAverage(), [F32([1.0])])
    with pytest.raises(ValueError, match=r"ranges of shape \(2,\) after ranges of shape \(1,\)"):
        state.update(paddle.ones([2]))
    with pytest.raises(
        LowbitError, match=r"Calibrated keeps .*the checkpoint is of a run with another scaling"
    ):
        Calibrated().load_state_dict(state.state_dict())
    with pytest.raises(LowbitError, match="another scaling"):
        MovingAverage().load_state_dict({})
    full = fed(Window(3), [F32([1.0])] * 5).state_dict()
    for size in (2, 4):
        with pytest.raises(LowbitError, match=f"window of 3 batches, but window_size is now {size}"):
            Window(size).load_state_dict(full)
