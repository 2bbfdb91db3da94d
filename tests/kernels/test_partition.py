"""Large tensors are divided among the threads: the same bits for every number of threads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lowbit.kernels import kernels, why_missing
from lowbit.kernels.library import openmp_runtime
from lowbit.kernels.quantization import Draw, Integers, Layout, Levels, axes_of, quantize_kernels

pytestmark = [
    pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}"),
    pytest.mark.skipif(openmp_runtime() is None, reason="Paddle's wheel has no OpenMP runtime here"),
]
INT4 = Integers(-8, 7)
# Rows and periodic blocks; few groups, which are divided themselves, and many.
CASES = [
    ((300_001,), (1,)),
    ((3, 100_003), (3, 1)),
    ((7, 3, 20_000), (1, 3, 1)),
    ((40, 40, 300), (40, 40, 1)),
    ((200, 300, 9), (1, 300, 1)),
    ((2000, 50, 9), (2000, 50, 1)),
    ((70_000, 5), (1, 5)),
    ((3, 40, 2100), (3, 1, 2100)),
    ((20, 40, 40, 20), (20, 1, 40, 1)),
]


def at(array: np.ndarray) -> int:
    return array.ctypes.data


def results(x: np.ndarray, scale_shape: tuple[int, ...]) -> list[np.ndarray]:
    axes, done = axes_of(x.shape, scale_shape), quantize_kernels()
    ranges, best, scales = (np.empty(scale_shape, np.float32) for _ in range(3))
    done.ranges(at(x), at(ranges), axes)
    done.mse_ranges(at(x), at(best), axes, INT4, turns=3)
    done.scales(at(best), at(scales), best.size, INT4)
    nearest, drawn, unpacked = (np.empty(x.shape, np.int8) for _ in range(3))
    lost = [
        done.to_integers(at(x), at(nearest), at(scales), axes, INT4),
        # Across the border of two blocks of random numbers.
        done.to_integers(
            *(at(x), at(drawn), at(scales), axes, INT4, [Draw(1, 2, 3)]),
            first=2**32 - x.size // 2,
        ),
    ]
    packed, values = np.empty((x.size + 1) // 2, np.uint8), np.empty_like(x)
    done.pack_nibbles(at(drawn), at(packed), x.size)
    done.unpack_nibbles(at(packed), at(unpacked), x.size, signed=True)
    done.from_integers(at(drawn), at(values), at(scales), axes, signed=True)
    turned, size = np.empty_like(x), x.size // x.shape[0]
    done.hadamard(at(x), at(turned), x.shape[0], size, 1, math.gcd(size, 64))
    np.testing.assert_array_equal(unpacked, drawn)
    np.testing.assert_array_equal(values, drawn * scales)
    return [ranges, best, nearest, drawn, turned, np.array(lost)]


@pytest.mark.parametrize(("shape", "scale_shape"), CASES)
@pytest.mark.parametrize("broken", [False, True])
def test_the_number_of_threads_changes_nothing(threads, shape, scale_shape, broken):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    if broken:
        x.ravel()[rng.integers(0, x.size, 5)] = np.nan
    threads(1)
    expected = results(x, scale_shape)
    shared = tuple(axis for axis, size in enumerate(scale_shape) if size == 1)
    np.testing.assert_array_equal(expected[0], np.abs(x).max(shared, keepdims=True))
    for number in (2, 3, 16):
        threads(number)
        for one, other in zip(results(x, scale_shape), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def trained(x: np.ndarray, layout: Layout) -> list[np.ndarray]:
    """What quantization-aware training computes: values and gradients, with the sums over channels."""
    scale = np.linspace(0.1, 0.2, layout.channels, dtype=np.float32)
    bound, dy, levels = scale * 8, x[::-1].copy(), Levels(-8, 7, True)
    y, through, clipped, stepped = (np.empty_like(x) for _ in range(4))
    dbound, dstep = np.empty_like(bound), np.empty_like(scale)
    done, given = quantize_kernels(), (at(x), at(dy))
    done.quantize(at(x), at(y), at(scale), None, layout, levels)
    done.quantize_grad(*given, at(through), at(scale), None, None, layout, levels)
    done.quantize_grad(*given, at(clipped), at(scale), at(bound), at(dbound), layout, levels)
    done.lsq_grad(*given, at(stepped), at(scale), at(dstep), layout, levels)
    return [y, through, clipped, stepped, dbound, dstep]


@pytest.mark.parametrize(
    "layout",
    [(1, 1, 300_001), (16, 40, 500), (1, 300, 701), (20_001, 30, 1), (3, 1, 100_000), (2, 70_000, 3)],
)
def test_nor_of_quantization_aware_training(threads, layout):
    layout = Layout(*layout)
    x = np.random.default_rng(0).standard_normal(np.prod(layout)).astype(np.float32)
    threads(1)
    expected = trained(x, layout)
    values = x.reshape(layout)
    scale = np.linspace(0.1, 0.2, layout.channels, dtype=np.float32)[:, None]
    q = np.clip(np.rint(values / scale), -8, 7)
    np.testing.assert_array_equal(expected[0].reshape(layout), q * scale)
    slope = np.where((values / scale > -8) & (values / scale < 7), q - values / scale, q).astype(np.float64)
    sums = (slope * x[::-1].reshape(layout)).sum((0, 2))
    np.testing.assert_allclose(expected[-1], sums, rtol=1e-4, atol=1e-3)
    for number in (2, 3, 16):
        threads(number)
        for one, other in zip(trained(x, layout), expected, strict=True):
            np.testing.assert_array_equal(one, other)
