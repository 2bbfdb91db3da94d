"""The passes between values and integers against their slow twins in lowbit/numerics, to the last bit."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.kernels import kernels, why_missing
from lowbit.kernels.quantization import Axes, Draw, Integers, axes_of, quantize_kernels
from lowbit.numerics import (
    Grid,
    Stochastic,
    fused,
    fused_groups,
    nearest,
    parse_grid,
    scale_from_range,
)
from lowbit.numerics.fake_quant import quantize_to_integers
from lowbit.numerics.granularity import shape_of_scales
from lowbit.numerics.hadamard import butterflies
from lowbit.numerics.observers import mse_range
from lowbit.numerics.rounding import log_round, random_integers
from tests.support.numerics_twin import F32, HUGE, assert_same_bits, grids

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
# With VNNI and AMX only the products differ.
VARIANTS = [name for name in kernels().variants if not name.endswith(("vnni", "amx"))] if kernels() else []
SPECIAL = F32([0, -0.0, 1e-45, -1e-39, 1e38, HUGE, -HUGE])
NOT_FINITE = F32([np.nan, -np.nan, np.inf, -np.inf])
FRAME = 77

sizes = st.sampled_from([1, 1, 2, 3, 5, 7, 9, 16, 49, 64, 65, 130, 1023, 1100])
shapes = st.lists(sizes, min_size=1, max_size=4).filter(lambda shape: math.prod(shape) <= 40_000)


@st.composite
def tensors(draw) -> tuple[np.ndarray, tuple[int, ...]]:
    """Values, with what is hard among them, and the axes that share a scale."""
    shape = draw(shapes)
    shared = tuple(axis for axis in range(len(shape)) if draw(st.booleans()))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    unit = draw(st.sampled_from([1e-42, 1e-30, 1.0, 3e37]))
    x = (rng.standard_normal(shape) * unit).astype(F32)
    if draw(st.booleans()):  # ties
        x = (np.rint(x / F32(unit) * 8) / 8 * unit).astype(F32)
    for values in (SPECIAL, NOT_FINITE):
        if draw(st.booleans()):
            places = rng.integers(0, x.size, 4)
            x.ravel()[places] = rng.choice(values, 4)
    return x, shared


@pytest.fixture(scope="module", autouse=True)
def plain_operators():
    """The twins as they are written: where there are kernels, they would call them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "kernels", lambda: None)
        patch.setattr(fused_groups, "quantize_kernels", lambda: None)
        yield


def each_variant():
    before = kernels().variant
    for variant in VARIANTS:
        kernels().select_variant(variant)
        yield variant
    kernels().select_variant(before)


def at(array: np.ndarray) -> int:
    return array.ctypes.data


def framed(shape, dtype) -> tuple[np.ndarray, np.ndarray]:
    """Memory for a result, and the whole it is a part of, to see that nothing is written beside it."""
    whole = np.full(math.prod(shape) + 2, FRAME, dtype)
    return whole[1:-1].reshape(shape), whole


def assert_frame(whole: np.ndarray) -> None:
    assert whole[0] == whole[-1] == FRAME


def axes_for(x: np.ndarray, shared: tuple[int, ...]) -> tuple[Axes, list[int]]:
    scale_shape = shape_of_scales(x.shape, shared)
    return axes_of(x.shape, scale_shape), scale_shape


def integers_of(grid: Grid) -> Integers:
    return Integers(grid.lowest, grid.highest)


def largest(x: np.ndarray, shared: tuple[int, ...], signed: bool = True) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return (np.abs(x) if signed else np.maximum(x, F32(0))).max(axis=shared, keepdims=True)


def scales_for(x: np.ndarray, shared: tuple[int, ...], grid: Grid) -> np.ndarray:
    return scale_from_range(paddle.to_tensor(largest(x, shared)), grid).numpy()


@given(case=tensors(), signed=st.booleans())
@settings(max_examples=150)
def test_ranges(case, signed):
    x, shared = case
    axes, scale_shape = axes_for(x, shared)
    for _ in each_variant():
        found, whole = framed(scale_shape, F32)
        quantize_kernels().ranges(at(x), at(found), axes, signed=signed)
        assert_same_bits(np.abs(found), largest(x, shared, signed))
        assert_frame(whole)


@given(case=tensors(), grid=grids, turns=st.sampled_from([1, 1, 2, 50]))
@settings(max_examples=150)
def test_mse_ranges(case, grid, turns):
    x, shared = case
    axes, scale_shape = axes_for(x, shared)
    start = largest(x, shared)
    expected = mse_range(paddle.to_tensor(x), grid, shared, turns).numpy()
    for _ in each_variant():
        found, whole = framed(scale_shape, F32)
        for known in (True, False):
            found[...] = start if known else FRAME
            quantize_kernels().mse_ranges(at(x), at(found), axes, integers_of(grid), turns=turns, known=known)
            assert_same_bits(found, expected)
            assert_frame(whole)


def test_mse_stops_when_its_twin_does():
    """Groups so large, and a grid so fine, that a turn may change a range by just a millionth."""
    x = np.random.default_rng(0).standard_normal((6, 60_000)).astype(F32)
    grid = parse_grid("uint8")
    expected = mse_range(paddle.to_tensor(x), grid, (1,), 50).numpy()
    for _ in each_variant():
        found = np.empty((6, 1), F32)
        quantize_kernels().mse_ranges(at(x), at(found), axes_for(x, (1,))[0], integers_of(grid), turns=50)
        assert_same_bits(found, expected)


@pytest.mark.parametrize("shape, shared", [((2, 70_000), (1,)), ((20_000, 2, 5), (0, 2))])
@pytest.mark.parametrize("word", ["int8", "uint8", "int2"])
def test_mse_sums_are_wide_enough(shape, shared, word):
    """All values at the end of the grid, more of them than 32 bits hold the sum of."""
    x, grid = np.full(shape, 3.0, F32), parse_grid(word)
    axes, _ = axes_for(x, shared)
    expected = mse_range(paddle.to_tensor(x), grid, shared, 1).numpy()
    for _ in each_variant():
        found = np.empty_like(expected)
        quantize_kernels().mse_ranges(at(x), at(found), axes, integers_of(grid))
        assert_same_bits(found, expected)


@given(grid=grids, bits=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=70))
@settings(max_examples=100)
def test_scales(grid, bits):
    ranges = np.array([0, *bits], np.uint32).view(F32)
    expected = scale_from_range(paddle.to_tensor(ranges), grid).numpy()
    for _ in each_variant():
        found, whole = framed(ranges.shape, F32)
        quantize_kernels().scales(at(ranges), at(found), ranges.size, integers_of(grid))
        assert_same_bits(found, expected)
        assert_frame(whole)


def check_integers(x, scale, axes, grid: Integers, draws, first, expected: np.ndarray) -> None:
    """All variants against values in floats, NaN among them."""
    dtype = np.int8 if grid.lowest < 0 else np.uint8
    lost = np.isnan(expected)
    for _ in each_variant():
        found, whole = framed(x.shape, dtype)
        count = quantize_kernels().to_integers(at(x), at(found), at(scale), axes, grid, draws, first=first)
        assert count == lost.sum()
        assert not found[lost].any()
        np.testing.assert_array_equal(found[~lost].astype(F32), expected[~lost])
        assert_frame(whole)


@given(case=tensors(), grid=grids, draws=st.integers(0, 1), first=st.sampled_from([0, 9, 2**32 - 3, 2**40]))
@settings(max_examples=200)
def test_integers(case, grid, draws, first):
    x, shared = case
    axes, _ = axes_for(x, shared)
    # Not the scale of all values: some are to be clipped.
    scale = scales_for(np.where(np.abs(x) > 1e38, F32(0), x) * F32(0.6), shared, grid)
    rounding = Stochastic(seed=7, step=3, layer=11, first=first) if draws else nearest
    expected = quantize_to_integers(paddle.to_tensor(x), paddle.to_tensor(scale), grid, rounding).numpy()
    check_integers(x, scale, axes, integers_of(grid), [Draw(7, 3, 11)] * draws, first, expected)


@given(case=tensors(), bits=st.integers(2, 7), signed=st.booleans())
@settings(max_examples=50)
def test_two_draws_are_added(case, bits, signed):
    x, shared = case
    grid = parse_grid(f"{'' if signed else 'u'}int{bits}")
    axes, _ = axes_for(x, shared)
    scale = scales_for(x, shared, grid)
    values = paddle.to_tensor(x), paddle.to_tensor(scale)
    each = [
        quantize_to_integers(*values, grid, Stochastic(seed=1, step=2, layer=layer)).numpy()
        for layer in (3, 4)
    ]
    check_integers(x, scale, axes, integers_of(grid), [Draw(1, 2, 3), Draw(1, 2, 4)], 0, each[0] + each[1])


def test_draws_that_do_not_fit_into_a_byte():
    x, q = np.ones(1, F32), np.zeros(1, np.int8)
    axes = axes_of([1], [1])
    for grid, draws in [
        (Integers(-128, 127), 2),
        (Integers(0, 255), 2),
        (Integers(-64, 64, True), 2),
        (Integers(-8, 7), 3),
    ]:
        with pytest.raises(ValueError, match=f"{draws} draws of .* do not fit"):
            quantize_kernels().to_integers(at(x), at(q), at(x), axes, grid, [Draw(0, 0, 0)] * draws)


@given(
    case=tensors(),
    log=st.booleans(),
    turns=st.sampled_from([0, 1, 3]),
    draws=st.integers(0, 2),
    first=st.sampled_from([0, 9, 2**32 - 3]),
    known=st.booleans(),
)
@settings(max_examples=100)
def test_all_in_one_call(case, log, turns, draws, first, known):
    """Ranges, scales and integers are those of one call after the other."""
    x, shared = case
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    shared = tuple({axis + 4 - case[0].ndim for axis in shared} | ({2, 3} if known else set()))
    grid = Integers(-4, 4, log=True) if log else Integers(-8, 7)
    drawn = [Draw(7, 3, layer) for layer in range(draws)]
    axes, scale_shape = axes_for(x, shared)
    rows = largest(x, (2, 3))
    for _ in each_variant():
        own, (ranges, *_), scales = quantize_kernels(), framed(scale_shape, F32), np.empty(scale_shape, F32)
        if turns:
            own.mse_ranges(at(x), at(ranges), axes, grid, turns=turns)
        else:
            own.ranges(at(x), at(ranges), axes)
        own.scales(at(ranges), at(scales), scales.size, grid)
        expected = np.empty(x.shape, np.int8)
        lost = own.to_integers(at(x), at(expected), at(scales), axes, grid, drawn, first=first)
        (found, whole), (found_scales, scales_whole) = framed(x.shape, np.int8), framed(scale_shape, F32)
        at_once = (at(x), at(found), at(found_scales), axes, grid, drawn)
        more = {"first": first, "turns": turns, "largest": at(rows) if known else None}
        assert own.to_dynamic_integers(*at_once, **more) == lost
        np.testing.assert_array_equal(found, expected)
        assert_same_bits(found_scales, scales)
        assert_frame(whole)
        assert_frame(scales_whole)


@given(case=tensors(), highest=st.sampled_from([4, 64]), draws=st.integers(0, 1))
@settings(max_examples=100)
def test_log_grid(case, highest, draws):
    x, shared = case
    axes, _ = axes_for(x, shared)
    grid = Integers(-highest, highest, log=True)
    with np.errstate(all="ignore"):
        scale = np.maximum(largest(x, shared) / F32(highest), np.finfo(F32).tiny)
        v = np.clip(x / scale, -highest, highest)
    rounding = Stochastic(seed=7, step=3, layer=11) if draws else nearest
    expected = log_round(paddle.to_tensor(v), rounding).numpy()
    check_integers(x, scale, axes, grid, [Draw(7, 3, 11)] * draws, 0, expected)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("below", [0, 1, 2, 32])
def test_at_the_edge_of_the_random_number(log, below):
    """The sum of fraction and random number just reaches the next level, or just fails to."""
    k = random_integers(2000, seed=0, step=0, layer=0).astype(np.float64)
    step = max(below, 1) if log else 1
    edge = F32(below + step * (2**24 - k) / 2**24)
    one = np.ones(1, F32)
    grid = Integers(-64, 64, log)
    for x in (edge, np.nextafter(edge, F32(0)), np.nextafter(edge, F32(99))):
        inside = np.where((x >= below) & (x < below + step), x, F32(below))
        up = (inside.astype(np.float64) - below) / step + k / 2**24 >= 1
        expected = F32(below + step * up)
        check_integers(inside, one, axes_of([2000], [1]), grid, [Draw(0, 0, 0)], 0, expected)


def test_log_grid_two_draws():
    x = np.random.default_rng(0).standard_normal((3, 333)).astype(F32)
    scale = largest(x, (1,)) / F32(4)
    rounded = [
        log_round(paddle.to_tensor(x / scale), Stochastic(seed=1, step=2, layer=n)).numpy() for n in (3, 4)
    ]
    draws = [Draw(1, 2, 3), Draw(1, 2, 4)]
    check_integers(x, scale, axes_for(x, (1,))[0], Integers(-4, 4, True), draws, 0, rounded[0] + rounded[1])


@given(case=tensors(), signed=st.booleans())
@settings(max_examples=100)
def test_back_to_values(case, signed):
    x, shared = case
    axes, scale_shape = axes_for(x, shared)
    rng = np.random.default_rng(x.size)
    q = rng.integers(-128 if signed else 0, 128 if signed else 256, x.shape, np.int8 if signed else np.uint8)
    scale = rng.standard_normal(scale_shape).astype(F32)
    for _ in each_variant():
        y, whole = framed(x.shape, F32)
        quantize_kernels().from_integers(at(q), at(y), at(scale), axes, signed=signed)
        assert_same_bits(y, q.astype(F32) * scale)
        assert_frame(whole)


@given(count=st.integers(0, 300), signed=st.booleans(), seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_nibbles(count, signed, seed):
    q = np.random.default_rng(seed).integers(-8 if signed else 0, 8 if signed else 16, count, np.int8)
    low, high = q[::2] & 15, np.append(q[1::2], np.int8(0))[: (count + 1) // 2] & 15
    for _ in each_variant():
        packed, whole_packed = framed([(count + 1) // 2], np.uint8)
        quantize_kernels().pack_nibbles(at(q), at(packed), count)
        np.testing.assert_array_equal(packed, (low | high << 4).view(np.uint8))
        found, whole = framed([count], np.int8)
        quantize_kernels().unpack_nibbles(at(packed), at(found), count, signed=signed)
        np.testing.assert_array_equal(found, q)
        assert_frame(whole_packed)
        assert_frame(whole)


@given(
    power=st.integers(0, 6),
    before=st.integers(1, 40),
    blocks=st.integers(1, 3),
    after=st.sampled_from([1, 2, 7, 15, 16, 49, 130, 600]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60)
def test_hadamard(power, before, blocks, after, seed):
    block = 2**power
    shape = (before if after < 100 else 2, blocks * block, after)
    x = np.random.default_rng(seed).standard_normal(shape).astype(F32)
    expected = butterflies(paddle.to_tensor(x), 1, block).numpy()
    for _ in each_variant():
        found, whole = framed(shape, F32)
        quantize_kernels().hadamard(at(x), at(found), *shape, block)
        assert_same_bits(found, expected)
        assert_frame(whole)


@pytest.mark.parametrize("block", [3, 128, 16])
def test_hadamard_of_blocks_that_do_not_fit(block):
    with pytest.raises(ValueError, match=f"blocks of {block}"):
        quantize_kernels().hadamard(0, 0, 1, 8, 1, block)


@pytest.mark.parametrize("shape, scale_shape", [((0, 3), (1, 3)), ((3, 0), (3, 1)), ((0,), (0,))])
def test_no_elements(shape, scale_shape):
    axes = axes_of(shape, scale_shape)
    for _ in each_variant():
        found, whole = framed(scale_shape, F32)
        quantize_kernels().ranges(0, at(found), axes)
        assert not found.any()
        quantize_kernels().mse_ranges(0, at(found), axes, Integers(-8, 7))
        assert quantize_kernels().to_integers(0, 0, at(found), axes, Integers(-8, 7)) == 0
        quantize_kernels().from_integers(0, 0, at(found), axes, signed=True)
        assert not found.any()
        assert_frame(whole)


def test_axes_of_shapes_that_do_not_fit():
    assert axes_of([2, 3], [2, 1]) == Axes((1, 1, 2, 3), (False, False, True, False))
    for shape, scale_shape in [([2, 3], [3]), ([2, 3], [2, 2]), ([1] * 5, [1] * 5)]:
        with pytest.raises(ValueError, match="do not fit"):
            axes_of(shape, scale_shape)
