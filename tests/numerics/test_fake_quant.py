"""Quantize, dequantize, fake-quantize and clipping."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowbit.accel.amp_autocast import rounding
from lowbit.errors import LowbitError
from lowbit.numerics import (
    BF16,
    Stochastic,
    dequantize,
    fake_quantize,
    pact_fake_quantize,
    parse_grid,
    parse_observer,
    quantize_to_integers,
)
from lowbit.numerics.fake_quant import clip_to_bound, lower_bound, rounded_bound, usable_bound
from tests.support import numerics_twin as twin
from tests.support.numerics_twin import (
    F32,
    HUGE,
    INTEGER_GRIDS,
    TINY,
    assert_same_bits,
    every_bit_pattern,
    grids,
    scales,
)

INT4 = parse_grid("int4")
roundings = st.sampled_from([None, Stochastic(seed=1, step=2, layer=3)])


@given(x=every_bit_pattern, scale=scales, grid=grids)
@settings(max_examples=300)
def test_equals_the_twin_to_the_last_bit(x, scale, grid):
    scale = F32([scale])
    q = quantize_to_integers(paddle.to_tensor(x), paddle.to_tensor(scale), grid)
    # + 0: the sign of a zero is no part of the definition, since integers have none.
    assert_same_bits(q.numpy() + F32(0), twin.quantize(x, scale, grid) + F32(0))
    y = fake_quantize(paddle.to_tensor(x), paddle.to_tensor(scale), grid).numpy()
    assert_same_bits(y + F32(0), twin.fake_quantize(x, scale, grid) + F32(0))


@given(x=every_bit_pattern, scale=scales, grid=grids, how=roundings)
@settings(max_examples=200)
def test_every_value_lands_on_the_grid(x, scale, grid, how):
    scale = F32([scale])
    q = quantize_to_integers(paddle.to_tensor(x), paddle.to_tensor(scale), grid, how).numpy()
    y = fake_quantize(paddle.to_tensor(x), paddle.to_tensor(scale), grid, how).numpy()
    values = np.arange(grid.lowest, grid.highest + 1, dtype=F32)
    nan = np.isnan(x)
    assert np.isin(q[~nan], values).all() and np.isnan(q[nan]).all()
    with np.errstate(over="ignore"):
        assert np.isin(y[~nan], values * scale).all() and np.isnan(y[nan]).all()


@given(x=twin.ordinary, scale=scales, grid=grids, how=roundings)
@settings(max_examples=200)
def test_error_inside_the_range_is_half_a_step(x, scale, grid, how):
    y = fake_quantize(paddle.to_tensor(x), paddle.to_tensor(F32([scale])), grid, how).numpy()
    exact, step = x.astype(np.float64), float(F32(scale))
    inside = (exact >= grid.lowest * step) & (exact <= grid.highest * step)
    allowed = (0.5 if how is None else 1.0) * step + np.abs(exact) * 2.0**-22  # the floats' own rounding
    assert (np.abs(y - exact) <= allowed)[inside].all()
    assert (y[exact > grid.highest * step] == F32(grid.highest) * F32(scale)).all()
    assert (y[exact < grid.lowest * step] == F32(grid.lowest) * F32(scale)).all()


@given(x=every_bit_pattern, scale=scales, grid=grids)
@settings(max_examples=200)
def test_twice_is_once(x, scale, grid):
    scale = paddle.to_tensor(F32([scale]))
    once = fake_quantize(paddle.to_tensor(x), scale, grid)
    assert np.array_equal(fake_quantize(once, scale, grid).numpy(), once.numpy(), equal_nan=True)


@pytest.mark.parametrize("grid", INTEGER_GRIDS, ids=str)
@pytest.mark.parametrize("observer", ["minmax", "mse", "percentile", "kl"])
def test_groups_of_odd_values(grid, observer):
    """Each row is a group: zeros stay, one bad value spoils its own group alone, the rest is finite."""
    rows = {
        "zeros": [0, 0, -0.0, 0],
        "constant": [0.3] * 4,
        "nan": [1, np.nan, 0, -1],
        "inf": [1, np.inf, 0, -1],
        "-inf": [-np.inf, 2, 0, -1],
        "denormal": [1e-45, -1e-40, 0, 1e-39],
        "smallest": [TINY, -TINY, 0, TINY],
        "huge": [HUGE, -HUGE, 0, HUGE / 2],
        "wide": [HUGE, 1e-45, -1, 0],
    }
    x = paddle.to_tensor(F32(list(rows.values())))
    y = fake_quantize(x, parse_observer(observer)(x, grid, (1,)), grid).numpy()
    y = dict(zip(rows, y, strict=True))
    assert (y["zeros"] == 0).all()
    for bad in ("nan", "inf", "-inf"):
        assert np.isnan(y[bad]).all()
    for good in set(rows) - {"nan", "inf", "-inf"}:
        assert np.isfinite(y[good]).all()
    assert (y["denormal"] == 0).all()
    if observer in ("minmax", "mse"):
        np.testing.assert_allclose(y["constant"], 0.3, rtol=1e-6)
    signed_end = 1 if grid.signed else 0
    assert y["huge"][0] > 0 and (y["huge"][1] < 0) == bool(signed_end) and y["huge"][2] == 0


def test_infinite_values_are_clipped_and_nan_stays_where_the_scale_is_given():
    x = paddle.to_tensor(F32([np.inf, -np.inf, np.nan, 1]))
    y = fake_quantize(x, paddle.to_tensor([0.5]), INT4).numpy()
    assert np.array_equal(y, F32([3.5, -4, np.nan, 1]), equal_nan=True)
    for scale in (np.nan, np.inf):
        assert np.isnan(fake_quantize(x, paddle.to_tensor(F32([scale])), INT4).numpy()).all()


@pytest.mark.parametrize("letters", ["", "N", "C", "NC", "NHW", "NCHW"])
def test_every_group_by_itself(letters):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5), dtype=F32)
    axes = tuple(i for i, letter in enumerate("NCHW") if letter not in letters)
    whole = paddle.to_tensor(x)
    scale = parse_observer("minmax")(whole, INT4, axes)
    assert list(scale.shape) == [1 if i in axes else n for i, n in enumerate(x.shape)]
    twins = twin.scale_from_range(twin.minmax_range(x, axes) if axes else np.abs(x), INT4)
    assert_same_bits(scale.numpy(), twins)
    y = fake_quantize(whole, scale, INT4).numpy()
    assert_same_bits(y, twin.fake_quantize(x, twins, INT4))


@pytest.mark.parametrize(("mask", "expected"), [(True, [0, 1, 1, 1, 1, 0, 0]), (False, [1] * 7)])
def test_gradient_goes_straight_through(mask, expected):
    # int4 with a scale of 2: -16 .. 14; inside counts half a step more.
    x = paddle.to_tensor(F32([-17.5, -17, -3.3, 0, 15, 15.5, np.inf]), stop_gradient=False)
    scale = paddle.to_tensor([2.0], stop_gradient=False)
    dy = np.arange(1, 8, dtype=F32)
    fake_quantize(x, scale, INT4, mask=mask).backward(paddle.to_tensor(dy))
    assert x.grad.tolist() == (dy * F32(expected)).tolist()
    assert scale.grad is None


def test_the_largest_value_keeps_its_gradient():
    """max / (max / 7) may be a little more than 7; that is rounding, not clipping."""
    x = np.random.default_rng(0).standard_normal((500, 3), dtype=F32)
    tensor = paddle.to_tensor(x, stop_gradient=False)
    y = fake_quantize(tensor, parse_observer("minmax")(tensor, INT4, (1,)), INT4)
    y.sum().backward()
    assert (tensor.grad.numpy() == 1).all()


def test_with_and_without_gradient_is_the_same():
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((4, 5), dtype=F32))
    scale, how = paddle.to_tensor([0.2]), Stochastic(seed=1, step=1, layer=1)
    for rounded in (None, how):
        plain = fake_quantize(x, scale, INT4, rounded)
        x.stop_gradient = False
        assert_same_bits(fake_quantize(x, scale, INT4, rounded).numpy(), plain.numpy())
        x.stop_gradient = True


def test_mixed_precision_around_changes_nothing():
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((8, 9), dtype=F32), stop_gradient=False)
    observer, how = parse_observer("mse"), Stochastic(seed=1, step=1, layer=1)

    def run() -> np.ndarray:
        return fake_quantize(x, observer(x, INT4, (1,)), INT4, how).numpy()

    expected = run()
    with rounding(BF16, "O2"):
        assert_same_bits(run(), expected)


def test_types_and_shapes():
    for dtype in ("float16", "bfloat16", "float64"):
        x = paddle.to_tensor([0.6, -9.0]).cast(dtype)
        for frozen in (True, False):
            x.stop_gradient = frozen
            y = fake_quantize(x, paddle.to_tensor([0.5]), INT4)
            assert y.dtype == x.dtype and y.cast("float32").tolist() == [0.5, -4.0]
    for shape in ([], [0, 3], [1], [1, 1, 1, 1]):
        x = paddle.ones(shape)
        scale = parse_observer("minmax")(x, INT4, tuple(range(len(shape))))
        assert list(fake_quantize(x, scale, INT4).shape) == shape
        assert list(dequantize(quantize_to_integers(x, scale, INT4), scale).shape) == shape


def test_a_float_grid_needs_no_scale():
    with pytest.raises(LowbitError, match="bf16 is not an integer grid"):
        fake_quantize(paddle.to_tensor([1.0]), paddle.to_tensor([1.0]), BF16)


@given(x=every_bit_pattern, alpha=st.floats(-1, 2.0**100, width=32), signed=st.booleans())
@settings(max_examples=100)
def test_values_end_at_the_bounds(x, alpha, signed):
    found = clip_to_bound(paddle.to_tensor(x), paddle.to_tensor(F32([alpha])), signed=signed).numpy()
    bound = max(F32(alpha), TINY)
    lower = -bound if signed else F32(0)
    assert np.array_equal(found, np.where(x > bound, bound, np.where(x < lower, lower, x)), equal_nan=True)


def test_bounds_that_learning_took_below_zero():
    bound = usable_bound(paddle.to_tensor([-3.0, 0.0, 2.0]).cast("float64"))
    assert bound.dtype == paddle.float32 and bound.tolist() == [float(TINY), float(TINY), 2.0]
    assert lower_bound(bound, signed=True).tolist() == [-float(TINY), -float(TINY), -2.0]
    assert lower_bound(bound, signed=False).tolist() == [0.0, 0.0, 0.0]


def test_a_bound_that_is_nan_shows():
    assert np.isnan(
        clip_to_bound(paddle.ones([2]), paddle.to_tensor([float("nan")]), signed=True).numpy()
    ).all()


@example(1, "int4")  # -alpha is rounded to -8
@given(st.integers(0, 2**16), st.sampled_from(["int8", "uint8", "int4", "uint2", "int8-narrow"]))
def test_a_rounded_bound_clips_nothing_that_was_clipped_and_rounded(seed, word):
    rng, grid = np.random.default_rng(seed), parse_grid(word)
    scale = paddle.to_tensor(rng.uniform(0.01, 1, 1).astype(np.float32))
    alpha = scale * float(rng.uniform(0.1, 1.2 * grid.highest))
    x = paddle.to_tensor(rng.uniform(-1.5, 1.5, 200).astype(np.float32)) * alpha
    bound = rounded_bound(alpha, scale, grid)
    y = pact_fake_quantize(x, alpha, scale, grid)
    np.testing.assert_array_equal(pact_fake_quantize(x, bound, scale, grid).numpy(), y.numpy())
    assert float(y.abs().max()) <= float(bound)
    y.stop_gradient = False
    again = pact_fake_quantize(y, bound, scale, grid)
    np.testing.assert_array_equal(again.numpy(), y.numpy())
    again.sum().backward()
    assert bool((y.grad == 1).all())
