"""Batch norm, ReLU and max-pool in C++ against NumPy, in every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lowbit.kernels import kernels, why_missing
from lowbit.kernels.gemm import Multiples
from lowbit.kernels.library import openmp_runtime
from lowbit.kernels.norm import Activation, Norm, NormQuantizers, Pool, norm_kernels
from lowbit.kernels.quantization import Layout, Levels, MovingAverage, observer, quantize_kernels

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
F32 = np.float32
FRAME = 77  # around every result: nothing may be written beside it


def _at(array: np.ndarray) -> int:
    return array.ctypes.data


class _Result:
    def __init__(self, shape: tuple[int, ...], dtype: type = F32) -> None:
        self._all = np.full(int(np.prod(shape)) + 2, FRAME, dtype)
        self.values = self._all[1:-1].reshape(shape)

    @property
    def at(self) -> int:
        return _at(self.values)

    def checked(self) -> np.ndarray:
        assert self._all[0] == self._all[-1] == FRAME
        return self.values


def _in_every_variant(compute) -> list[np.ndarray]:
    """The results of the best instruction set, after all others gave the same bits."""
    before, found = kernels().variant, []
    try:
        for name in kernels().variants:
            kernels().select_variant(name)
            found.append(compute())
    finally:
        kernels().select_variant(before)
    for other in found[1:]:
        for ours, theirs in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8))
    return found[0]


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 70)),
    centre=st.sampled_from([0.0, 1.0, -300.0]),
    affine=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_batch_norm(shape, centre, affine, seed):
    random = np.random.default_rng(seed)
    x = (random.standard_normal(shape) * random.uniform(0.1, 3) + centre).astype(F32)
    dy = random.standard_normal(shape).astype(F32)
    channels = shape[1]
    weight, bias, old_mean, old_variance = random.uniform(0.5, 2, (4, channels)).astype(F32)
    norm = Norm(
        _at(x),
        _at(weight) if affine else None,
        _at(bias) if affine else None,
        Layout(*shape),
        1e-5,
        0.9,
    )

    def compute() -> list[np.ndarray]:
        y, dx = _Result(shape), _Result(shape)
        mean, inverse, dweight, dbias = (_Result((channels,)) for _ in range(4))
        moved = [old.copy() for old in (old_mean, old_variance)]
        norm_kernels().batch_norm_forward(norm, y.at, mean.at, inverse.at, *map(_at, moved))
        norm_kernels().batch_norm_backward(norm, mean.at, inverse.at, _at(dy), dx.at, dweight.at, dbias.at)
        only = _Result((channels,))
        norm_kernels().batch_norm_backward(norm, mean.at, inverse.at, _at(dy), None, None, only.at)
        np.testing.assert_array_equal(only.checked(), dbias.values)
        return [result.checked() for result in (y, dx, mean, inverse, dweight, dbias)] + moved

    y, dx, mean, inverse, dweight, dbias, new_mean, new_variance = _in_every_variant(compute)
    if not affine:
        weight, bias = np.ones(channels, F32), np.zeros(channels, F32)
    x, dy = x.astype(np.float64), dy.astype(np.float64)
    along, others = (slice(None), None), (0, 2)
    exact_mean, variance = x.mean(others), x.var(others)
    exact_inverse = 1 / np.sqrt(variance + 1e-5)
    normal = (x - exact_mean[along]) * exact_inverse[along]
    small = {"rtol": 1e-4, "atol": 1e-4 + 3e-7 * abs(centre) * exact_inverse.max()}
    np.testing.assert_allclose(mean, exact_mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(inverse, exact_inverse, rtol=1e-5)
    np.testing.assert_allclose(y, normal * weight[along] + bias[along], **small)
    np.testing.assert_allclose(new_mean, 0.9 * old_mean + 0.1 * exact_mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(new_variance, 0.9 * old_variance + 0.1 * variance, rtol=1e-5)
    np.testing.assert_allclose(dbias, dy.sum(others), rtol=1e-5, atol=1e-5)
    # Of the mean that was saved: far from 0, its own rounding would show in a sum of many.
    saved = (x - mean[along]) * inverse[along]
    np.testing.assert_allclose(dweight, (dy * saved).sum(others), rtol=1e-5, atol=1e-5)
    means = [values.mean(others)[along] for values in (dy, dy * normal)]
    exact = (dy - means[0] - normal * means[1]) * (weight * exact_inverse)[along]
    tolerance = small["atol"] * max(1, float(exact_inverse.max()) ** 2)
    np.testing.assert_allclose(dx, exact, rtol=1e-4, atol=tolerance)


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 70)),
    largest=st.sampled_from([100, 32767, 2**21]),
    spoilt=st.sampled_from([None, 32768.0, -40000.0, 0.5, 8388608.0, np.nan, np.inf]),
    seed=st.integers(0, 1000),
)
def test_batch_norm_of_multiples_keeps_those_and_gives_the_same_bits(shape, largest, spoilt, seed):
    has_high_bits = largest > 32767
    if has_high_bits and spoilt in (32768.0, -40000.0):
        spoilt = None  # these fit
    random = np.random.default_rng(seed)
    integers = random.integers(-largest, largest + 1, shape)
    scale = random.uniform(1e-3, 2, shape[:2]).astype(F32)
    x = integers.astype(F32) * scale[..., None]
    if spoilt is not None:
        place = tuple(random.integers(0, shape))
        x[place] = F32(spoilt) * scale[place[:2]]
    dy, channels = random.standard_normal(shape).astype(F32), shape[1]
    norm = Norm(_at(x), None, None, Layout(*shape), 1e-5, 0.9, scale=_at(scale))

    def compute() -> list[np.ndarray]:
        y, dx, again, low = (*(_Result(shape) for _ in range(3)), _Result(shape, np.uint16))
        high = _Result(shape, np.int8)
        multiples = Multiples(low.at, high.at if has_high_bits else None)
        mean, inverse, running, other, dweight, dbias = (_Result((channels,)) for _ in range(6))
        running.values[:] = other.values[:] = 1
        fits = norm_kernels().batch_norm_forward(
            norm, y.at, mean.at, inverse.at, running.at, other.at, multiples=multiples
        )
        kept = (
            high.checked().astype(np.int32) * 65536 + low.checked()
            if has_high_bits
            else low.checked().view(np.int16)
        )
        assert fits == (spoilt is None) and (not fits or (kept == integers).all())
        statistics = (mean.at, inverse.at, _at(dy))
        norm_kernels().batch_norm_backward(norm, *statistics, dx.at, dweight.at, dbias.at)
        if fits:
            without_x = norm._replace(x=None)
            wanted = (again.at, None, dbias.at)
            norm_kernels().batch_norm_backward(without_x, *statistics, *wanted, multiples=multiples)
            np.testing.assert_array_equal(again.checked(), dx.values)
            running.values[:] = other.values[:] = 1
            assert norm_kernels().batch_norm_forward(
                without_x, again.at, mean.at, inverse.at, running.at, other.at, multiples=multiples
            )
            np.testing.assert_array_equal(again.checked(), y.values)
        overwritten = x.copy()  # dx in the memory of x
        in_place = norm._replace(x=_at(overwritten))
        norm_kernels().batch_norm_backward(in_place, *statistics, _at(overwritten), None, None)
        np.testing.assert_array_equal(overwritten, dx.values)
        return [result.checked() for result in (y, dx, dweight, dbias)]

    _in_every_variant(compute)


def _activated(x: np.ndarray, activation: Activation) -> np.ndarray:
    if activation == Activation.HARDSWISH:
        return _activated(x + F32(3), Activation.RELU6) * x / F32(6)
    positive = np.where(x < 0, F32(0), x)  # NaN stays NaN
    return np.where(positive > 6, F32(6), positive)


def _slope(x: np.ndarray, activation: Activation) -> np.ndarray:
    if activation == Activation.RELU6:
        return ((x > 0) & (x < 6)).astype(F32)
    above, below = (x + F32(3) > 0).astype(F32), (x + F32(3) < 6).astype(F32)
    return above * (F32(2) * x + F32(3)) / F32(6) * below + (F32(1) - below)


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 70)),
    summed=st.booleans(),
    activation=st.sampled_from(Activation),
    strange=st.sampled_from([None, 0.0, -0.0, np.nan, np.inf]),
    packed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_with_a_sum_and_an_activation_it_has_the_bits_of_one_after_the_other(
    shape, summed, activation, strange, packed, seed
):
    if summed and activation:
        activation = Activation.RELU  # the only one after a sum
    random = np.random.default_rng(seed)
    scale = random.uniform(1e-2, 2, shape[:2]).astype(F32)
    x = random.integers(-20, 21, shape).astype(F32) * scale[..., None]
    other, dy = random.standard_normal((2, *shape)).astype(F32)
    if strange is not None:
        for values in (x, other, dy)[:: 1 if strange == 0 else 2]:  # an x that is NaN would hide all else
            values[random.random(shape) < 0.2] = strange
    weight, bias = random.uniform(-1, 2, (2, shape[1])).astype(F32)
    norm = Norm(
        _at(x), _at(weight), _at(bias), Layout(*shape), 1e-5, 0.9, scale=_at(scale) if packed else None
    )
    both = norm._replace(other=_at(other) if summed else None, activation=activation)

    def alone(mean: int, inverse: int) -> list[np.ndarray]:
        y, moved = np.empty(shape, F32), np.zeros((2, shape[1]), F32)
        norm_kernels().batch_norm_forward(norm, _at(y), mean, inverse, *map(_at, moved))
        y, given = y + other if summed else y, dy
        if activation > Activation.RELU:
            y, given = _activated(y, activation), dy * _slope(y, activation)
        elif activation:
            bits, given = np.empty((y.size + 7) // 8, np.uint8), np.empty(shape, F32)
            norm_kernels().relu_forward(_at(y), _at(y), _at(bits), y.size)
            norm_kernels().relu_backward(_at(dy), _at(bits), _at(given), y.size)
        dx, dweight, dbias = np.empty(shape, F32), *np.empty((2, shape[1]), F32)
        gradients = map(_at, (dx, dweight, dbias))
        norm_kernels().batch_norm_backward(norm, mean, inverse, _at(given), *gradients)
        return [y, moved, dx, dweight, dbias, given]

    def compute() -> list[np.ndarray]:
        y, dx, dother, low = (*(_Result(shape) for _ in range(3)), _Result(shape, np.int16))
        multiples = Multiples(low.at)
        mean, inverse, dweight, dbias = (_Result((shape[1],)) for _ in range(4))
        bits = _Result((shape[0] * shape[1], (shape[2] + 7) // 8), np.uint8)
        largest, largest_dx = _Result(shape[:2]), _Result(shape[:2])
        moved = np.zeros((2, shape[1]), F32)
        fits = norm_kernels().batch_norm_forward(
            both,
            *(y.at, mean.at, inverse.at, *map(_at, moved)),
            bits=bits.at if summed and activation else None,
            multiples=multiples if packed else None,
            largest=largest.at,
        )
        norm_kernels().batch_norm_backward(
            both._replace(x=None if fits else both.x),
            *(mean.at, inverse.at, _at(dy), dx.at, dweight.at, dbias.at),
            dother=dother.at,
            bits=bits.at if summed and activation else None,
            multiples=multiples if fits else None,
            largest=largest_dx.at,
        )
        np.testing.assert_array_equal(largest.checked(), np.abs(y.values).max(2))
        np.testing.assert_array_equal(largest_dx.checked(), np.abs(dx.values).max(2))
        if not activation:
            dother.values[:] = dy
        found = [y.checked(), moved, *(result.checked() for result in (dx, dweight, dbias, dother))]
        bits.checked(), low.checked()
        for ours, theirs in zip(found, alone(mean.at, inverse.at), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        return found

    _in_every_variant(compute)


@pytest.mark.parametrize("activation", [Activation.NONE, Activation.RELU])
@pytest.mark.parametrize("shape", [(3, 70, 9), (2, 40, 1100), (2, 3, 40_000)])
def test_channels_that_are_computed_together_have_the_bits_of_each_alone(threads, shape, activation):
    random = np.random.default_rng(0)
    x, dy = random.standard_normal((2, *shape)).astype(F32)

    def compute(x: np.ndarray, dy: np.ndarray) -> list[np.ndarray]:
        y, dx, (mean, inverse, dweight, dbias) = (
            np.empty_like(x),
            np.empty_like(x),
            np.empty((4, x.shape[1]), F32),
        )
        running, largest = np.ones((2, x.shape[1]), F32), np.empty(x.shape[:2], F32)
        norm = Norm(_at(x), None, None, Layout(*x.shape), 1e-5, 0.9, activation=activation)
        norm_kernels().batch_norm_forward(norm, *map(_at, (y, mean, inverse, *running)))
        gradients = map(_at, (mean, inverse, dy, dx, dweight, dbias))
        norm_kernels().batch_norm_backward(norm, *gradients, largest=_at(largest))
        return [y, dx, largest, mean[None], dweight[None], dbias[None]]

    together = _in_every_variant(lambda: compute(x, dy))
    for number in (1, 2, 5):
        threads(number)
        for ours, theirs in zip(compute(x, dy), together, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for c in range(0, shape[1], 7):
        alone = compute(x[:, c : c + 1].copy(), dy[:, c : c + 1].copy())
        for all_, one in zip(together, alone, strict=True):
            np.testing.assert_array_equal(all_[:, c : c + 1], one)


def test_a_mean_far_from_zero_costs_no_digits():
    """As sums in float would: the deviation is a ten-thousandth of the mean."""
    x = (1000 + 0.1 * np.random.default_rng(0).standard_normal((8, 1, 1000))).astype(F32)
    y, mean, inverse, running = np.empty_like(x), *np.zeros((3, 1), F32)
    norm = Norm(_at(x), None, None, Layout(*x.shape), 0.0, 0.9)
    norm_kernels().batch_norm_forward(norm, _at(y), _at(mean), _at(inverse), _at(running), _at(running))
    assert inverse[0] == pytest.approx(1 / x.astype(np.float64).std(), rel=1e-6)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 31, 1023, 1024, 1025, 3000])
def test_relu(count):
    random = np.random.default_rng(count)
    x, dy = random.standard_normal((2, count)).astype(F32)
    x[random.random(count) < 0.2] = random.choice(F32([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45]))

    def compute() -> list[np.ndarray]:
        y, dx, bits = _Result((count,)), _Result((count,)), _Result(((count + 7) // 8,), np.uint8)
        norm_kernels().relu_forward(_at(x), y.at, bits.at, count)
        norm_kernels().relu_backward(_at(dy), bits.at, dx.at, count)
        return [y.checked(), dx.checked(), bits.checked()]

    y, dx, bits = _in_every_variant(compute)
    np.testing.assert_array_equal(y, np.where(x > 0, x, 0))
    np.testing.assert_array_equal(dx, np.where(x > 0, dy, 0))
    np.testing.assert_array_equal(bits, np.packbits(x > 0, bitorder="little"))


@st.composite
def _pools(draw: st.DrawFn) -> Pool:
    sizes, kernels_, strides, befores, windows = [], [], [], [], []
    for _ in range(2):
        kernel, stride = draw(st.integers(2, 3)), draw(st.integers(1, 2))
        before = draw(st.integers(0, kernel - 1))
        size = draw(st.integers(1, 22))
        most = (size - 1 + before) // stride + 1
        sizes.append(size), kernels_.append(kernel), strides.append(stride), befores.append(before)
        windows.append(draw(st.integers(max(1, most - 2), most)))
    return Pool(draw(st.integers(1, 3)), *sizes, *windows, *kernels_, *strides, *befores)


@settings(max_examples=150)
@given(pool=_pools(), seed=st.integers(0, 1000), strange=st.booleans())
def test_max_pool(pool, seed, strange):
    random = np.random.default_rng(seed)
    x = np.maximum(random.integers(-4, 5, (pool.planes, pool.height, pool.width)), 0).astype(
        F32
    )  # many equals
    if strange:
        x[random.random(x.shape) < 0.1] = random.choice(F32([np.nan, -np.inf, np.inf]))
    shape = (pool.planes, pool.out_height, pool.out_width)
    dy = random.integers(-9, 10, shape).astype(F32)

    def compute() -> list[np.ndarray]:
        y, places, dx = _Result(shape), _Result(shape, np.uint8), _Result(x.shape)
        norm_kernels().max_pool_forward(_at(x), y.at, places.at, pool)
        norm_kernels().max_pool_backward(_at(dy), places.at, dx.at, pool)
        return [y.checked(), places.checked(), dx.checked()]

    y, places, dx = _in_every_variant(compute)
    slow_y, slow_places, slow_dx = _slow_pool(x, dy, pool)
    np.testing.assert_array_equal(y, slow_y)
    np.testing.assert_array_equal(places, slow_places)
    np.testing.assert_array_equal(dx, slow_dx)


@settings(max_examples=100)
@given(pool=_pools(), seed=st.integers(0, 1000), strange=st.booleans(), packed=st.booleans())
def test_with_a_relu_and_a_max_pool_it_has_the_bits_of_one_after_the_other(pool, seed, strange, packed):
    images, channels = 2, pool.planes
    pool = pool._replace(planes=images * channels)
    shape, pooled = ((images, channels, *size) for size in (pool[1:3], pool[3:5]))
    random = np.random.default_rng(seed)
    scale = random.uniform(1e-2, 2, shape[:2]).astype(F32)
    x = random.integers(-20, 21, shape).astype(F32) * scale[..., None, None]
    if strange:
        x[0, 0, 0, 0] = random.choice(F32([np.nan, np.inf]))
    weight, bias = random.uniform(-1, 2, (2, channels)).astype(F32)
    dy = random.standard_normal(pooled).astype(F32)
    layout = Layout(images, channels, pool.height * pool.width)
    rectified = Norm(_at(x), _at(weight), _at(bias), layout, 1e-5, 0.9, None, _at(scale), Activation.RELU)

    def compute() -> list[np.ndarray]:
        y, places, wide, dwide = _Result(pooled), _Result(pooled, np.uint8), _Result(shape), _Result(shape)
        low, found = _Result(shape, np.int16), []
        for has_pool in (False, True):
            norm = rectified._replace(pool=pool) if has_pool else rectified
            mean, inverse, running, variance = np.ones((4, channels), F32)
            statistics = [_at(values) for values in (mean, inverse, running, variance)]
            out = (y if has_pool else wide).at
            fits = norm_kernels().batch_norm_forward(
                norm, out, *statistics, multiples=Multiples(low.at) if packed else None, places=places.at
            )
            assert fits == (packed and not strange)
            given = dy
            if not has_pool:
                norm_kernels().max_pool_forward(wide.at, y.at, places.at, pool)
                norm_kernels().max_pool_backward(_at(dy), places.at, dwide.at, pool)
                given = dwide.checked()
            dx, dweight, dbias = _Result(shape), *(_Result((channels,)) for _ in range(2))
            norm_kernels().batch_norm_backward(
                norm._replace(x=None if fits else norm.x),
                *(*statistics[:2], _at(given), dx.at, dweight.at, dbias.at),
                multiples=Multiples(low.at) if fits else None,
                places=places.at,
            )
            results = [result.checked().copy() for result in (y, places, dx, dweight, dbias)]
            found.append([*results, mean, inverse, running, variance])
        for ours, theirs in zip(*found, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        return found[1]

    _in_every_variant(compute)


def _slow_pool(x: np.ndarray, dy: np.ndarray, pool: Pool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    y, places, dx = np.empty_like(dy), np.empty(dy.shape, np.uint8), np.zeros_like(x)
    for window in np.ndindex(*dy.shape):
        plane, row, column = window
        top, left = row * pool.stride_h - pool.top, column * pool.stride_w - pool.left
        best = None
        for i, j in np.ndindex(pool.kernel_h, pool.kernel_w):
            h, w = top + i, left + j
            if 0 <= h < pool.height and 0 <= w < pool.width:
                value = x[plane, h, w]
                if best is None or value > best[0] or (np.isnan(value) and not np.isnan(best[0])):
                    best = (value, i * pool.kernel_w + j, h, w)
        y[window], places[window] = best[:2]
        dx[plane, best[2], best[3]] += dy[window]
    return y, places, dx


class _Average:
    """A moving average's state and a scale, as an argument of the kernels."""

    def __init__(self, alpha: float | None, levels: Levels) -> None:
        self._alpha = None if alpha is None else np.array([alpha], F32)
        self._floats, self._counts = np.array([1.5, 3.0, 2.0], F32), np.array([1, 0], np.int64)
        self.scale = np.zeros(1, F32)
        state = [_at(self._floats[i:]) for i in range(3)] + [_at(self._counts[i:]) for i in range(2)]
        at_alpha = None if self._alpha is None else _at(self._alpha)
        self.observer = observer(at_alpha, levels, MovingAverage(0.9, *state), _at(self.scale))

    def state(self) -> list[np.ndarray]:
        return [self._floats.copy(), self._counts.copy(), self.scale.copy()]


_LEVELS = [Levels(-127, 127, True), Levels(-8, 7, True), Levels(0, 255, False)]
_ALPHAS = [None, 0.5, 4.0, -1.0, np.nan]
_QUANTIZERS = st.none() | st.tuples(st.sampled_from(_ALPHAS), st.sampled_from(_LEVELS))


@settings(max_examples=300)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 40), st.sampled_from([1, 7, 49, 300])),
    activation=st.sampled_from(list(Activation)),
    quantizers=st.tuples(_QUANTIZERS, _QUANTIZERS),
    wants_y=st.booleans(),
    gain=st.sampled_from([0.01, 0.3, 2.0]),
    special=st.sampled_from([None, 0.0, np.nan, np.inf, -np.inf]),
    seed=st.integers(0, 1000),
)
def test_quantizers_before_and_after_the_activation(
    shape, activation, quantizers, wants_y, gain, special, seed
):
    """Against batch norm, quantizer, activation and quantizer one after the other."""
    before, after = quantizers
    assume(before is not None or after is not None)
    assume(before is None or activation in (Activation.NONE, Activation.HARDSWISH))
    random, channels, count = np.random.default_rng(seed), shape[1], int(np.prod(shape))
    x = (3 * random.standard_normal(shape) + random.uniform(-2, 2)).astype(F32)
    if special is not None:
        x[:, 0] = special if special == 0 else x[:, 0]
        x.flat[seed % count] = special
    dy = random.standard_normal(shape).astype(F32)
    weight, bias = (gain * random.uniform(-1, 1, (2, channels))).astype(F32)
    plain = Norm(_at(x), _at(weight), _at(bias), Layout(*shape), 1e-5, 0.9)
    own, others = norm_kernels(), quantize_kernels()

    def averages() -> list[_Average | None]:
        return [None if one is None else _Average(*one) for one in quantizers]

    def states(of: list[_Average | None]) -> list[np.ndarray]:
        return [value for one in of if one is not None for value in one.state()]

    def in_one_pass() -> list[np.ndarray]:
        norm, both, statistics = (
            plain._replace(activation=activation),
            averages(),
            np.ones((4, channels), F32),
        )
        rows = [_at(row) for row in statistics]
        y, largest = _Result(shape), _Result(shape[:2])
        q, clipped, integers, after_clipped = (_Result(shape, np.int8) for _ in range(4))
        by = NormQuantizers(
            *(None if one is None else one.observer for one in both),
            q=q.at if before is not None and activation else None,
            clipped=None if before is None else clipped.at,
            integers=None if after is None else integers.at,
            after_clipped=None if after is None else after_clipped.at,
        )
        at_largest = largest.at if after is None else None
        at_y = y.at if wants_y or after is None else None
        nan_count = own.quantized_norm_forward(norm, by, *rows, at_y, largest=at_largest)
        if at_y is None:
            own.quantized_norm_values(norm, by, *rows[:2], y.at)
        dx, sums, bounds = _Result(shape), np.zeros((2, channels), F32), np.zeros((2, 1), F32)
        learning = [one is not None and one[0] is not None for one in quantizers]
        at_bounds = [_at(bound) if learns else None for bound, learns in zip(bounds, learning, strict=True)]
        own.quantized_norm_backward(
            norm, by, *rows[:2], _at(dy), dx.at, _at(sums[0]), _at(sums[1]), *at_bounds
        )
        in_place = dy.copy()
        own.quantized_norm_backward(
            norm, by, *rows[:2], _at(in_place), _at(in_place), _at(sums[0]), _at(sums[1]), *at_bounds
        )
        np.testing.assert_array_equal(in_place, dx.checked())
        floats = [dx.checked(), sums, statistics, *bounds, y.checked()]
        if after is None:
            floats.append(largest.checked())
        # The sign of a NaN depends on the instruction set.
        results = [np.where(one == one, one, one.dtype.type(np.nan)) for one in floats]
        results += [np.array([nan_count]), *states(both)]
        results += [clipped.checked()] if before is not None else []
        results += [integers.checked(), after_clipped.checked()] if after is not None else []
        q.checked()
        return results

    def one_after_the_other() -> list[np.ndarray]:
        both, statistics = averages(), np.ones((4, channels), F32)
        rows = [_at(row) for row in statistics]
        values, quantized, activated, y = (np.zeros(shape, F32) for _ in range(4))
        integers, clipped, after_clipped = np.zeros((3, *shape), np.int8)
        given_, dx, sums = dy.copy(), np.zeros(shape, F32), np.zeros((2, channels), F32)
        bounds, nan_count = np.zeros((2, 1), F32), 0
        if before is None:
            norm = plain._replace(activation=activation)
            own.batch_norm_forward(norm, _at(activated), *rows)
        else:
            norm = plain
            own.batch_norm_forward(plain, _at(values), *rows)
            others.observe_and_mark(_at(values), _at(quantized), None, _at(clipped), count, both[0].observer)
            activated = quantized.copy()
            if activation:
                own.hardswish_forward(_at(quantized), _at(activated), count)
        y = activated
        if after is not None:
            y = np.zeros(shape, F32)
            nan_count = others.observe_and_mark(
                _at(activated), _at(y), _at(integers), _at(after_clipped), count, both[1].observer
            )
            bound = _at(bounds[1]) if after[0] is not None else None
            others.marked_grad(_at(given_), _at(after_clipped), _at(given_), bound, count)
        if before is not None:
            if activation:
                own.hardswish_backward(_at(quantized), _at(given_), _at(given_), count)
            bound = _at(bounds[0]) if before[0] is not None else None
            others.marked_grad(_at(given_), _at(clipped), _at(given_), bound, count)
        own.batch_norm_backward(norm, *rows[:2], _at(given_), _at(dx), _at(sums[0]), _at(sums[1]))
        results = [dx, sums, statistics, *bounds, y]
        if after is None:
            results.append(np.abs(y).max(axis=2))
        results += [np.array([nan_count]), *states(both)]
        results += [clipped] if before is not None else []
        return results + ([integers, after_clipped] if after is not None else [])

    found, expected = _in_every_variant(in_one_pass), one_after_the_other()
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if number in (3, 4):  # the bounds' gradients: another order of sums, in fp64
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif(openmp_runtime() is None, reason="Paddle's wheel has no OpenMP runtime here")
def test_quantizers_in_several_threads(threads):
    random, shape = np.random.default_rng(0), (4, 70, 1000)
    x, dy = random.standard_normal((2, *shape)).astype(F32)
    norm = Norm(_at(x), None, None, Layout(*shape), 1e-5, 0.9, activation=Activation.HARDSWISH)
    found = []
    for number in (1, 2, 3, 16):
        threads(number)
        both = [_Average(2.5, Levels(-127, 127, True)), _Average(1.5, Levels(-127, 127, True))]
        statistics, (y, dx), bytes_ = (
            np.ones((4, 70), F32),
            np.zeros((2, *shape), F32),
            np.zeros((4, *shape), np.int8),
        )
        rows, sums = [_at(row) for row in statistics], np.zeros((4, 70), F32)
        by = NormQuantizers(*(one.observer for one in both), *(_at(one) for one in bytes_))
        norm_kernels().quantized_norm_forward(norm, by, *rows, _at(y))
        gradients = _at(dx), *(_at(row) for row in sums)
        norm_kernels().quantized_norm_backward(norm, by, *rows[:2], _at(dy), *gradients)
        found.append([y, dx, *bytes_, sums, statistics, *both[0].state(), *both[1].state()])
    assert found[0][3].any() and found[0][5].any()
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)
