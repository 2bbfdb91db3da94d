"""Large tensors are cut into parts for the threads: the same bits for every number of them."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.kernels import kernels, why_missing
from lowbit.kernels.operands import Draw, Integers, axes_of, operands
from lowbit.kernels.threads import runtime

pytestmark = [
    pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}"),
    pytest.mark.skipif(runtime() is None, reason="Paddle's wheel has no OpenMP runtime here"),
]
INT4 = Integers(-8, 7)
# In rows and in panels, of few groups, which are cut themselves, and of many.
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


@pytest.fixture
def threads():
    """Sets their number, and sets it back."""
    before = runtime().omp_get_max_threads()
    yield runtime().omp_set_num_threads
    runtime().omp_set_num_threads(before)


def results(x: np.ndarray, scale_shape: tuple[int, ...]) -> list[np.ndarray]:
    axes, done = axes_of(x.shape, scale_shape), operands()
    ranges, best, scales = (np.empty(scale_shape, np.float32) for _ in range(3))
    done.ranges(x.ctypes.data, ranges.ctypes.data, axes)
    done.mse_ranges(x.ctypes.data, best.ctypes.data, axes, INT4, turns=3)
    done.scales(best.ctypes.data, scales.ctypes.data, best.size, INT4)
    nearest, drawn, unpacked = (np.empty(x.shape, np.int8) for _ in range(3))
    lost = [
        done.to_integers(x.ctypes.data, nearest.ctypes.data, scales.ctypes.data, axes, INT4),
        # Across the border of two blocks of random numbers.
        done.to_integers(
            *(x.ctypes.data, drawn.ctypes.data, scales.ctypes.data, axes, INT4, [Draw(1, 2, 3)]),
            first=2**32 - x.size // 2,
        ),
    ]
    packed, values = np.empty((x.size + 1) // 2, np.uint8), np.empty_like(x)
    done.pack_nibbles(drawn.ctypes.data, packed.ctypes.data, x.size)
    done.unpack_nibbles(packed.ctypes.data, unpacked.ctypes.data, x.size, signed=True)
    done.from_integers(drawn.ctypes.data, values.ctypes.data, scales.ctypes.data, axes, signed=True)
    turned = np.empty_like(x)
    done.hadamard(x.ctypes.data, turned.ctypes.data, x.shape[0], x.size // x.shape[0], 1, 1)
    np.testing.assert_array_equal(unpacked, drawn)
    np.testing.assert_array_equal(turned, x)
    np.testing.assert_array_equal(values, drawn * scales)
    return [ranges, best, nearest, drawn, np.array(lost)]


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
