"""NumPy twins: the definitions of docs/numerics.md written down plainly, for comparing bits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit.numerics import Grid, parse_grid

F32 = np.float32
TINY, HUGE = np.finfo(F32).tiny, np.finfo(F32).max

BITS = range(2, 9)
INTEGER_GRIDS = [
    parse_grid(form.format(bits)) for bits in BITS for form in ("int{}", "uint{}", "int{}-narrow")
]
grids = st.sampled_from(INTEGER_GRIDS)
every_bit_pattern = arrays(np.uint32, st.integers(1, 64), elements=st.integers(0, 2**32 - 1)).map(
    lambda bits: bits.view(F32)
)
scales = st.floats(float(TINY), 2.0**100, width=32)
# Values with ties among them: multiples of 1/8 and their neighbours, of any magnitude.
ordinary = arrays(F32, (3, 5), elements=st.integers(-2100, 2100).map(lambda n: F32(n / 8))).flatmap(
    lambda x: st.sampled_from([1e-30, 1e-3, 1.0, 3.3, 1e28]).map(lambda unit: x * F32(unit))
)


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(found), nan)
    assert np.array_equal(found[~nan].view(np.uint32), expected[~nan].view(np.uint32))


def scale_from_range(range_: np.ndarray, grid: Grid) -> np.ndarray:
    largest = max(
        F32(s) for s in _neighbours(float(HUGE) / _steps(grid)) if float(s) * _steps(grid) <= float(HUGE)
    )
    with np.errstate(all="ignore"):
        scale = np.minimum(np.maximum(range_ / F32(grid.highest), TINY), largest)
    scale = np.where(range_ == 0, F32(1), scale)
    return np.where(np.isfinite(range_), scale, F32("nan"))


def _neighbours(value: float) -> list[np.float32]:
    near = F32(value)
    return [np.nextafter(near, F32(0)), near]


def _steps(grid: Grid) -> int:
    return max(-grid.lowest, grid.highest)


def quantize(x: np.ndarray, scale: np.ndarray, grid: Grid) -> np.ndarray:
    with np.errstate(all="ignore"):
        v = np.rint(x / scale)
    return np.where(v < grid.lowest, F32(grid.lowest), np.where(v > grid.highest, F32(grid.highest), v))


def fake_quantize(x: np.ndarray, scale: np.ndarray, grid: Grid) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quantize(x, scale, grid) * scale


def minmax_range(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.abs(x).max(axis=axes, keepdims=True)


def mse_range(x: np.ndarray, grid: Grid, axes: tuple[int, ...], turns: int) -> np.ndarray:
    """Group by group, with Python's integers and fractions."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    start = minmax_range(x, axes)
    rows = x.transpose([*kept, *axes]).reshape(start.size, -1)
    found = [_mse_row(row, grid, turns) for row in rows]
    return np.array(found, F32).reshape(start.shape)


def _mse_row(row: np.ndarray, grid: Grid, turns: int) -> np.float32:
    range_ = np.abs(row).max()
    start = scale_from_range(range_, grid)
    bits = next(b for b in range(9) if 1 << b >= _steps(grid))
    one = 2 ** (30 - 2 * bits)
    for _ in range(turns if np.isfinite(range_) else 0):
        q = [int(n) for n in quantize(row, scale_from_range(range_, grid), grid)]
        fixed = [int(n) for n in np.rint(row / start * F32(one))]
        square = sum(n * n for n in q)
        if square == 0:
            break
        ratio = F32(np.float64(sum(a * b for a, b in zip(fixed, q, strict=True))) / np.float64(square)) * F32(
            1 / one
        )
        with np.errstate(over="ignore"):
            best = np.minimum(start * F32(grid.highest) * ratio, HUGE)
        if not best > 0:
            break
        change, range_ = abs(best - range_) > F32(range_) * F32(1e-6), best
        if not change:
            break
    return F32(range_)


def percentile(values: np.ndarray, percent: str) -> np.float32:
    """The smallest value that at least `percent` of all do not exceed, by counting."""
    share = Fraction(percent) / 100
    return next(v for v in np.sort(values) if Fraction(int((values <= v).sum()), len(values)) >= share)


def random_bits(element: int, seed: int, step: int, layer: int) -> int:
    """The generator's algorithm with Python's integers, for one element."""
    z = 0
    for word in (seed, step, layer, element >> 32):
        z = ((z ^ word) + 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        z ^= z >> 31
    h = (element + z) % 2**32
    h ^= h >> 16
    h = h * 0x7FEB352D % 2**32
    h ^= h >> 15
    h = (h + (z >> 32)) * 0x846CA68B % 2**32
    h ^= h >> 16
    h = h * 0x9E3779B1 % 2**32
    h ^= h >> 15
    return h >> 8


def stochastic(value: float, k: int) -> float:
    """sign(x) * floor(|x| + k / 2^24) without rounding."""
    return math.copysign(math.floor(Fraction(abs(float(value))) + Fraction(k, 2**24)), value)
