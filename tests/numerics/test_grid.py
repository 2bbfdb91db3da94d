from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit.errors import LowbitError
from lowbit.numerics import BF16, FP16, FULL, grid_names, parse_grid, round_to_grid
from tests.support.numerics_twin import assert_same_bits


def bf16_twin(x: np.ndarray) -> np.ndarray:
    """Round to nearest even on the upper 16 bits, by integers."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    result = rounded.astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), np.float32("nan"), result)


def fp16_twin(x: np.ndarray) -> np.ndarray:
    """Round to a multiple of the distance between neighbours, in fp64, where every step is exact."""
    wide = x.astype(np.float64)
    _, exponent = np.frexp(wide)
    step = np.ldexp(1.0, np.maximum(exponent - 1, -14) - 10)
    with np.errstate(invalid="ignore"):
        rounded = np.rint(wide / step) * step
    rounded = np.where(np.abs(rounded) > 65504, np.copysign(np.inf, wide), rounded)
    return np.where(np.isfinite(wide), rounded, wide).astype(np.float32)


TWINS = [(BF16, bf16_twin), (FP16, fp16_twin)]
EVERY_BIT_PATTERN = arrays(np.uint32, st.integers(1, 64), elements=st.integers(0, 2**32 - 1))


@pytest.mark.parametrize(("grid", "twin"), TWINS)
@given(bits=EVERY_BIT_PATTERN)
@settings(max_examples=200)
def test_equals_the_twin_to_the_last_bit(grid, twin, bits):
    x = bits.view(np.float32)
    assert_same_bits(round_to_grid(paddle.to_tensor(x), grid).numpy(), twin(x))


@pytest.mark.parametrize(("grid", "twin"), TWINS)
@given(base=arrays(np.uint32, 16, elements=st.integers(0, 2**19 - 1)), sign=st.integers(0, 1))
@settings(max_examples=100)
def test_ties_and_their_neighbours(grid, twin, base, sign):
    # Halfway between two neighbours, the drawn bits being those that stay; and one bit to either side.
    dropped = 16 if grid is BF16 else 13
    kept = (base.astype(np.uint64) << dropped) & 0x7F7FFFFF
    half = np.uint64(1 << (dropped - 1))
    for offset in (half, half - np.uint64(1), half + np.uint64(1)):
        x = ((kept + offset).astype(np.uint32) | np.uint32(sign << 31)).view(np.float32)
        assert_same_bits(round_to_grid(paddle.to_tensor(x), grid).numpy(), twin(x))


@pytest.mark.parametrize(("grid", "twin"), TWINS)
def test_special_values(grid, twin):
    tiny = np.finfo(np.float32).smallest_subnormal
    half = np.finfo(np.float16)
    ordinary = [0.0, -0.0, np.inf, -np.inf, np.nan, 2049.0, 2051.0]
    large = [65504.0, 65519.996, 65520.0, -65520.0, 1e5, 3.4028235e38, -3.4028235e38]
    small = [6e-8, 2.9802322e-8, 2.9802326e-8, half.smallest_subnormal, half.smallest_normal]
    # Between 1e-27 and 1e-23 Paddle's own cast to float16 does not give zero.
    smaller = [5e-24, -5e-24, 1e-25, 2e-27, 1e-40, 1.1754942e-38, tiny, -tiny]
    x = np.float32([*ordinary, *large, *small, *smaller])
    assert_same_bits(round_to_grid(paddle.to_tensor(x), grid).numpy(), twin(x))


def test_overflow_is_infinite():
    x = paddle.to_tensor([70000.0, -70000.0])
    assert round_to_grid(x, FP16).tolist() == [np.inf, -np.inf]
    assert np.isfinite(round_to_grid(x, BF16).numpy()).all()


@pytest.mark.parametrize(("grid", "twin"), TWINS)
@given(bits=EVERY_BIT_PATTERN)
@settings(max_examples=50)
def test_rounding_twice_changes_nothing(grid, twin, bits):
    once = round_to_grid(paddle.to_tensor(bits.view(np.float32)), grid)
    assert_same_bits(round_to_grid(once, grid).numpy(), once.numpy())


@pytest.mark.parametrize(("grid", "twin"), TWINS)
def test_gradient_goes_straight_through_and_is_rounded(grid, twin):
    x = paddle.to_tensor(np.float32([0.1, 1e30, -3.3]), stop_gradient=False)
    dy = np.float32([1 / 3, 0.7, 1e-3])
    round_to_grid(x, grid).backward(paddle.to_tensor(dy))
    assert_same_bits(x.grad.numpy(), twin(dy))
    assert not np.array_equal(x.grad.numpy(), dy)


@pytest.mark.parametrize("grid", [BF16, FP16])
def test_any_shape_and_layout(grid):
    whole = paddle.arange(24, dtype="float32").reshape([2, 3, 4]) / 7
    for x in (
        whole,
        whole.transpose([2, 0, 1]),
        whole[:, ::2],
        whole[0, 0, 1],
        whole[:0],
        whole.cast("float64"),
    ):
        y = round_to_grid(x, grid)
        assert y.dtype == x.dtype and list(y.shape) == list(x.shape)
        assert np.array_equal(y.numpy(), x.cast(grid.storage).cast(x.dtype).numpy())


def test_full_is_the_tensor_itself():
    x = paddle.to_tensor([1 / 3])
    assert round_to_grid(x, FULL) is x


def test_words():
    names = grid_names()
    assert len(names) == 3 + 3 * 7 + 3 + 3
    assert {"bf16", "int2", "int8-narrow", "uint5", "log4", "int3-midrise"} < set(names)
    assert [str(parse_grid(word)) for word in names] == names
    assert parse_grid("bfloat16") is parse_grid("bf16") is BF16
    assert str(BF16) == "bf16"


@pytest.mark.parametrize(("bits", "highest"), [(2, 1), (3, 4), (4, 64)])
def test_logarithmic(bits, highest):
    grid = parse_grid(f"log{bits}")
    assert grid.is_integer and grid.logarithmic
    assert (grid.lowest, grid.highest) == (-highest, highest)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_midrise(bits):
    grid = parse_grid(f"int{bits}-midrise")
    assert grid.is_integer and grid.bits == bits and grid.storage_bits == bits + 1
    assert (grid.lowest, grid.highest) == (1 - 2**bits, 2**bits - 1)
    assert -(2**bits) <= grid.lowest  # fits the two's complement of storage_bits
    assert not grid.has_every_integer and parse_grid(f"int{bits}").has_every_integer
    assert str(grid.in_bits(3)) == "int3-midrise" and str(grid.in_bits(8)) == "int8"


@pytest.mark.parametrize("bits", range(2, 9))
def test_integers(bits):
    full, narrow, unsigned = (parse_grid(f.format(bits)) for f in ("int{}", "int{}-narrow", "uint{}"))
    assert (full.lowest, full.highest) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    assert (narrow.lowest, narrow.highest) == (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)
    assert (unsigned.lowest, unsigned.highest) == (0, 2**bits - 1)
    for grid in (full, narrow, unsigned):
        assert grid.is_integer and grid.bits == bits
        assert np.iinfo(grid.storage).min <= grid.lowest and grid.highest <= np.iinfo(grid.storage).max


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("BF-16", 'unknown grid "BF-16": did you mean "bf16"'),
        ("Int8", 'unknown grid "Int8": did you mean "int8"'),
        ("int04", 'did you mean "int4"'),
        ("posit", "valid: full, bf16, fp16, int2 to int8, uint2 to uint8, int2-narrow to int8-narrow"),
        ("int0", r'unknown grid "int0": integer grids have 2 to 8 bits \(int2 to int8'),
        ("int1", "integer grids have 2 to 8 bits"),
        ("uint17", "integer grids have 2 to 8 bits"),
        ("int9-narrow", "integer grids have 2 to 8 bits"),
        ("uint8-narrow", "only signed grids have a narrow form"),
        (8, 'a grid is a word such as "int8" or "bf16", not 8'),
    ],
)
def test_mistakes(word, message):
    with pytest.raises(LowbitError, match=message):
        parse_grid(word)


def test_what_a_grid_is_not_for():
    with pytest.raises(LowbitError, match="rounding to int4 needs a scale: use fake_quantize"):
        round_to_grid(paddle.to_tensor([1.0]), parse_grid("int4"))
    for grid in (FULL, BF16):
        assert not grid.is_integer
        with pytest.raises(LowbitError, match=f"{grid} is not an integer grid: use one of int2 to int8"):
            _ = grid.highest
        with pytest.raises(LowbitError, match="not an integer grid"):
            _ = grid.lowest
