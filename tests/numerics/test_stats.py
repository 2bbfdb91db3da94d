"""Statistics of quantized tensors and histograms of their levels."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit.numerics import Granularity, parse_grid, parse_observer, quantize_to_integers
from lowbit.numerics.stats import QuantStats, level_histogram, measure_stats, value_histogram
from tests.support.numerics_twin import F32

# Gradients are often 0, and as small as 1e-30, whose squares fp32 does not have.
values = arrays(F32, (3, 2, 2, 4), elements=st.sampled_from([0.0, 0.0]) | st.floats(-8, 8, width=16)).flatmap(
    lambda x: st.sampled_from([1e-30, 1e-6, 1.0, 1e6]).map(lambda unit: x * F32(unit))
)
grids = st.sampled_from(["int2", "int4", "int4-narrow", "int8", "log3"]).map(parse_grid)
granularities = st.sampled_from(["", "N", "C", "NC", "NHW", "NCHW"]).map(Granularity)


def _twin(x: np.ndarray, q: np.ndarray, scale: np.ndarray, lowest: int, highest: int) -> QuantStats:
    """The definitions, value by value, in Python's floats."""
    scales = np.broadcast_to(scale, x.shape).ravel()
    x32 = x.ravel()
    y = [float(F32(n) * s) for n, s in zip(q.ravel(), scales, strict=True)]
    x = [float(value) for value in x32]
    size, nonzero = len(x), sum(value != 0 for value in x)
    power = math.fsum(a * a for a in x)
    error = math.fsum((b - a) ** 2 for a, b in zip(x, y, strict=True))
    with np.errstate(all="ignore"):
        steps = x32 / scales
    clipped = sum(bool(v < lowest - 0.5 or v > highest + 0.5) for v in steps)
    underflowed = sum(a != 0 and b == 0 for a, b in zip(x, y, strict=True))
    if not power:
        return QuantStats(sqnr=math.inf, gain=1, bias=0, variance_ratio=1, clipped=0, underflowed=0)
    return QuantStats(
        sqnr=10 * math.log10(power / error) if error else math.inf,
        gain=math.fsum(a * b for a, b in zip(x, y, strict=True)) / power,
        bias=math.fsum(b - a for a, b in zip(x, y, strict=True)) / size / math.sqrt(power / size),
        variance_ratio=_variance(y) / _variance(x) if _variance(x) else 1,
        clipped=clipped / nonzero,
        underflowed=underflowed / nonzero,
    )


def _variance(x: list[float]) -> float:
    mean = math.fsum(x) / len(x)
    return 0 if min(x) == max(x) else math.fsum((value - mean) ** 2 for value in x) / len(x)


def _assert_close(found: QuantStats, expected: QuantStats) -> None:
    for key, value in vars(expected).items():
        assert getattr(found, key) == pytest.approx(value, rel=1e-9, abs=1e-12), key


@given(values, grids, granularities, st.sampled_from([1.0, 0.5, 0.03]))
def test_against_the_definitions(x, grid, granularity, narrower):
    tensor = paddle.to_tensor(x)
    scale = parse_observer("minmax")(tensor, grid, granularity.reduced_axes("NCHW")) * narrower
    q = quantize_to_integers(tensor, scale, grid)
    found = measure_stats(tensor, q.cast("int8"), scale, lowest=grid.lowest, highest=grid.highest)
    _assert_close(found, _twin(x, q.numpy(), scale.numpy(), grid.lowest, grid.highest))


@pytest.mark.parametrize("bits", range(3, 9))
def test_a_bit_is_worth_6_db(bits):
    x = paddle.to_tensor(np.random.default_rng(0).uniform(-1, 1, 20_000).astype(F32))
    grid = parse_grid(f"int{bits}-narrow")
    scale = parse_observer("minmax")(x, grid, (0,))
    found = measure_stats(
        x, quantize_to_integers(x, scale, grid), scale, lowest=grid.lowest, highest=grid.highest
    )
    # A uniform error of one step: 10 log10(mean x² / (step² / 12)).
    assert found.sqnr == pytest.approx(20 * math.log10(2 * grid.highest), abs=0.2)
    assert found.clipped == 0
    assert abs(found.bias) < 0.01


def test_what_clipping_and_underflow_look_like():
    x = paddle.to_tensor(np.random.default_rng(0).normal(size=20_000).astype(F32))
    grid, bounds = parse_grid("int4"), {"lowest": -8, "highest": 7}

    def of(scale: float) -> QuantStats:
        step = paddle.full([1], scale)
        return measure_stats(x, quantize_to_integers(x, step, grid), step, **bounds)

    clipping, good, underflow = of(0.05), of(0.35), of(3.0)
    assert clipping.clipped > 0.5 and clipping.gain < 0.6 and clipping.variance_ratio < 0.5
    assert good.clipped < 0.02 and good.underflowed < 0.15 and abs(good.gain - 1) < 0.02
    assert underflow.underflowed > 0.8 and underflow.clipped == 0
    assert min(clipping.sqnr, underflow.sqnr) < good.sqnr - 5


def test_values_on_no_grid():
    x = paddle.to_tensor([1.0, -2.0, 0.0, 4.0])
    found = measure_stats(x, paddle.to_tensor([1.5, -2.0, 0.0, 0.0]))
    assert found.clipped is None
    assert found.underflowed == pytest.approx(1 / 3)
    assert found.gain == pytest.approx(5.5 / 21)
    assert found.bias == pytest.approx(-3.5 / 4 / math.sqrt(21 / 4))
    assert found.sqnr == pytest.approx(10 * math.log10(21 / 16.25))


@pytest.mark.parametrize("shape", [[3, 2], [0, 2]])
def test_nothing_is_lost_of_nothing(shape):
    zeros = paddle.zeros(shape)
    found = measure_stats(zeros, zeros, paddle.ones([1]), lowest=-8, highest=7)
    assert found == QuantStats(sqnr=math.inf, gain=1, bias=0, variance_ratio=1, clipped=0, underflowed=0)


def test_something_out_of_nothing_and_values_that_are_not_finite():
    found = measure_stats(paddle.zeros([2]), paddle.to_tensor([1.0, -2.0]))
    assert (found.sqnr, found.bias, found.variance_ratio) == (-math.inf, -math.inf, math.inf)
    broken = measure_stats(paddle.to_tensor([1.0, math.nan]), paddle.ones([2]))
    assert math.isnan(broken.sqnr) and math.isnan(broken.gain) and math.isnan(broken.bias)


@pytest.mark.parametrize("word", ["N", "C", "NHW", ""])
def test_some_entries_of_the_first_axis_stand_for_all(word):
    x = paddle.to_tensor(np.random.default_rng(0).normal(size=(12, 3, 2, 2)).astype(F32))
    grid, axes = parse_grid("int4"), Granularity(word).reduced_axes("NCHW")
    scale = parse_observer("minmax")(x, grid, axes)
    q = quantize_to_integers(x, scale, grid)
    bounds = {"lowest": grid.lowest, "highest": grid.highest}
    some = measure_stats(x, q, scale, **bounds, most=4 * 12)  # every third of the 12, of 12 values each
    own = scale[::3] if "N" in word else scale
    assert some == measure_stats(x[::3], q[::3], own, **bounds)
    assert measure_stats(x, q, scale, **bounds, most=x.size) == measure_stats(x, q, scale, **bounds)
    assert measure_stats(x, q, scale, **bounds, most=1) == measure_stats(
        x[:1], q[:1], scale[:1] if "N" in word else scale, **bounds
    )


VALUES = arrays(np.float32, st.integers(0, 50), elements=st.floats(-300, 300, width=32))


@given(values=VALUES, bits=st.integers(2, 8))
def test_every_value_is_counted_once_in_bins_and_in_levels(values, bits):
    grid = parse_grid(f"int{bits}")
    found = level_histogram(values, grid.lowest, grid.highest)
    assert sum(found.counts) == sum(found.levels) == len(values)
    assert len(found.levels) == 2**bits
    # The slow twin: one value at a time.
    levels = [0] * 2**bits
    clipped = 0
    for value in values.tolist():
        levels[min(max(round(value), grid.lowest), grid.highest) - grid.lowest] += 1
        clipped += value < grid.lowest - 0.5 or value > grid.highest + 0.5
    assert found.levels == levels
    assert found.dead_levels == levels.count(0)
    assert found.clipped == pytest.approx(clipped / max(len(values), 1))


def test_bins_reach_to_the_grid_and_not_far_beyond():
    found = level_histogram(np.array([0.1, 1000.0]), -8, 7)
    assert found.start == -8.5
    assert found.start + found.width * len(found.counts) == pytest.approx(7 + 7.5)
    assert found.counts[-1] == 1  # what is farther away is in the last bin


def test_values_on_no_grid_and_values_that_are_none():
    found = value_histogram(np.array([2.0, 2.0, np.nan, np.inf]))
    assert sum(found.counts) == 2
    assert found.dead_levels is None
    assert sum(value_histogram(np.array([])).counts) == 0


def test_plain_values_say_how_many_levels_are_dead_and_not_which():
    values = level_histogram(np.array([0.0, 1.0 / 3, 5.0]), -2, 1).values()
    assert (values["lowest"], values["highest"], values["dead"], values["clipped"]) == (-2, 1, 2, 0.33333)
    assert "levels" not in values and sum(values["counts"]) == 3
    assert set(value_histogram(np.array([1.0])).values()) == {"start", "width", "counts"}
