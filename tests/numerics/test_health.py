from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit.numerics import Granularity, parse_grid, parse_observer, quantize_to_integers
from lowbit.numerics.health import Health, measure_health
from tests.numerics.twin import F32

# Gradients are often 0, and as small as 1e-30, whose squares fp32 does not have.
values = arrays(F32, (3, 2, 2, 4), elements=st.sampled_from([0.0, 0.0]) | st.floats(-8, 8, width=16)).flatmap(
    lambda x: st.sampled_from([1e-30, 1e-6, 1.0, 1e6]).map(lambda unit: x * F32(unit))
)
grids = st.sampled_from(["int2", "int4", "int4-narrow", "int8", "log3"]).map(parse_grid)
granularities = st.sampled_from(["", "N", "C", "NC", "NHW", "NCHW"]).map(Granularity)


def _twin(x: np.ndarray, q: np.ndarray, scale: np.ndarray, lowest: int, highest: int) -> Health:
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
        return Health(sqnr=math.inf, gain=1, bias=0, variance_ratio=1, clipped=0, underflowed=0)
    return Health(
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


def _assert_close(found: Health, expected: Health) -> None:
    for key, value in vars(expected).items():
        assert getattr(found, key) == pytest.approx(value, rel=1e-9, abs=1e-12), key


@given(values, grids, granularities, st.sampled_from([1.0, 0.5, 0.03]))
def test_against_the_definitions(x, grid, granularity, narrower):
    tensor = paddle.to_tensor(x)
    scale = parse_observer("minmax")(tensor, grid, granularity.reduced_axes("NCHW")) * narrower
    q = quantize_to_integers(tensor, scale, grid)
    found = measure_health(tensor, q.cast("int8"), scale, lowest=grid.lowest, highest=grid.highest)
    _assert_close(found, _twin(x, q.numpy(), scale.numpy(), grid.lowest, grid.highest))


@pytest.mark.parametrize("bits", range(3, 9))
def test_a_bit_is_worth_6_db(bits):
    x = paddle.to_tensor(np.random.default_rng(0).uniform(-1, 1, 20_000).astype(F32))
    grid = parse_grid(f"int{bits}-narrow")
    scale = parse_observer("minmax")(x, grid, (0,))
    found = measure_health(
        x, quantize_to_integers(x, scale, grid), scale, lowest=grid.lowest, highest=grid.highest
    )
    # A uniform error of one step: 10 log10(mean x² / (step² / 12)).
    assert found.sqnr == pytest.approx(20 * math.log10(2 * grid.highest), abs=0.2)
    assert found.clipped == 0
    assert abs(found.bias) < 0.01


def test_what_clipping_and_underflow_look_like():
    x = paddle.to_tensor(np.random.default_rng(0).normal(size=20_000).astype(F32))
    grid, bounds = parse_grid("int4"), {"lowest": -8, "highest": 7}

    def of(scale: float) -> Health:
        step = paddle.full([1], scale)
        return measure_health(x, quantize_to_integers(x, step, grid), step, **bounds)

    clipping, good, underflow = of(0.05), of(0.35), of(3.0)
    assert clipping.clipped > 0.5 and clipping.gain < 0.6 and clipping.variance_ratio < 0.5
    assert good.clipped < 0.02 and good.underflowed < 0.15 and abs(good.gain - 1) < 0.02
    assert underflow.underflowed > 0.8 and underflow.clipped == 0
    assert min(clipping.sqnr, underflow.sqnr) < good.sqnr - 5


def test_values_on_no_grid():
    x = paddle.to_tensor([1.0, -2.0, 0.0, 4.0])
    found = measure_health(x, paddle.to_tensor([1.5, -2.0, 0.0, 0.0]))
    assert found.clipped is None
    assert found.underflowed == pytest.approx(1 / 3)
    assert found.gain == pytest.approx(5.5 / 21)
    assert found.bias == pytest.approx(-3.5 / 4 / math.sqrt(21 / 4))
    assert found.sqnr == pytest.approx(10 * math.log10(21 / 16.25))


@pytest.mark.parametrize("shape", [[3, 2], [0, 2]])
def test_nothing_is_lost_of_nothing(shape):
    zeros = paddle.zeros(shape)
    found = measure_health(zeros, zeros, paddle.ones([1]), lowest=-8, highest=7)
    assert found == Health(sqnr=math.inf, gain=1, bias=0, variance_ratio=1, clipped=0, underflowed=0)


def test_something_out_of_nothing_and_values_that_are_not_finite():
    found = measure_health(paddle.zeros([2]), paddle.to_tensor([1.0, -2.0]))
    assert (found.sqnr, found.bias, found.variance_ratio) == (-math.inf, -math.inf, math.inf)
    broken = measure_health(paddle.to_tensor([1.0, math.nan]), paddle.ones([2]))
    assert math.isnan(broken.sqnr) and math.isnan(broken.gain) and math.isnan(broken.bias)


@pytest.mark.parametrize("word", ["N", "C", "NHW", ""])
def test_some_entries_of_the_first_axis_stand_for_all(word):
    x = paddle.to_tensor(np.random.default_rng(0).normal(size=(12, 3, 2, 2)).astype(F32))
    grid, axes = parse_grid("int4"), Granularity(word).reduced_axes("NCHW")
    scale = parse_observer("minmax")(x, grid, axes)
    q = quantize_to_integers(x, scale, grid)
    bounds = {"lowest": grid.lowest, "highest": grid.highest}
    some = measure_health(x, q, scale, **bounds, most=4 * 12)  # every third of the 12, of 12 values each
    own = scale[::3] if "N" in word else scale
    assert some == measure_health(x[::3], q[::3], own, **bounds)
    assert measure_health(x, q, scale, **bounds, most=x.size) == measure_health(x, q, scale, **bounds)
    assert measure_health(x, q, scale, **bounds, most=1) == measure_health(
        x[:1], q[:1], scale[:1] if "N" in word else scale, **bounds
    )
