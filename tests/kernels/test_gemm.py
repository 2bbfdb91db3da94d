from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.kernels import gemm, kernels, why_missing
from lowbit.kernels.gemm import Geometry, Operand
from tests.support import gemm_reference as twin
from tests.support.gemm_cases import (
    F32,
    RANGES,
    VARIANTS,
    WIDE,
    at,
    compare_forward,
    compare_grad_input,
    geometries,
    integers,
    linear,
    square,
    using,
    weight_shape,
)

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


cases = given(
    geometry=geometries(),
    first=st.sampled_from(RANGES),
    second=st.sampled_from(RANGES),
    kind=st.sampled_from(["any", "any", "ends", "low", "high"]),
    variant=st.sampled_from(VARIANTS),
    seed=st.integers(0, 2**32 - 1),
)


@settings(max_examples=150)
@cases
def test_forward(geometry, first, second, kind, variant, seed):
    compare_forward(geometry, first, second, kind, variant, seed)


@settings(max_examples=150)
@cases
def test_grad_input(geometry, first, second, kind, variant, seed):
    compare_grad_input(geometry, first, second, kind, variant, seed)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("geometry", WIDE, ids=lambda g: f"{g.input}")
def test_more_than_one_tile(geometry, variant):
    rng = np.random.default_rng(2)
    x, dy, w = (
        integers(shape, (-128, 127), "any", rng)
        for shape in (geometry.input, geometry.output, weight_shape(geometry))
    )
    y, dx = np.empty(geometry.output, np.int64), np.empty(geometry.input, np.int64)
    data, gradient, weights = (Operand(integers=at(a), lowest=-128, highest=127) for a in (x, dy, w))
    with using(variant):
        gemm.forward(geometry, data, weights, None, sums=at(y))
        gemm.grad_input(geometry, gradient, weights, None, sums=at(dx))
    np.testing.assert_array_equal(y, twin.forward_sums(geometry, x, w))
    np.testing.assert_array_equal(dx, twin.grad_input_sums(geometry, dy, w))


@st.composite
def jumps(draw) -> Geometry:
    """Channels that fill AMX's tiles; rows and images that end nearer or farther than the next pixel."""
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    sides = [draw(st.integers(k, 9)) for k in kernel]
    return Geometry(
        input=(draw(st.integers(4, 24)), draw(st.sampled_from([64, 100, 192])), *sides),
        outputs=draw(st.sampled_from([16, 33])),
        kernel=kernel,
        stride=(draw(st.integers(1, 2)), draw(st.integers(1, 7))),
        padding=tuple(draw(st.integers(0, 2)) for _ in range(4)),
        dilation=(1, 1),
        groups=1,
    )


@settings(max_examples=80)
@given(geometry=jumps(), variant=st.sampled_from(VARIANTS[:2]), seed=st.integers(0, 2**32 - 1))
def test_rows_and_images_that_begin_anywhere(geometry, variant, seed):
    rng = np.random.default_rng(seed)
    x = integers(geometry.input, (-128, 127), "any", rng)
    w = integers(weight_shape(geometry), (-128, 127), "any", rng)
    y = np.empty(geometry.output, np.int64)
    data, weights = (Operand(integers=at(a), lowest=-128, highest=127) for a in (x, w))
    with using(variant):
        gemm.forward(geometry, data, weights, None, sums=at(y))
    np.testing.assert_array_equal(y, twin.forward_sums(geometry, x, w))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("second", [(-8, 7), (-64, 64), (-128, 127), (0, 255)])
@pytest.mark.parametrize("first", [(0, 15), (-8, 7), (-16, 16), (0, 255), (-128, 127)])
@pytest.mark.parametrize("ends", [("low", "low"), ("low", "high"), ("high", "low"), ("high", "high")])
def test_the_largest_sums_of_many_channels(first, second, ends, variant):
    """Nothing overflows on the way: 512 channels and 3 x 3 taps, every product the largest there is."""
    rng = np.random.default_rng(0)
    geometry = square(512, 17, 3)
    x, w = (
        integers(geometry.input, first, ends[0], rng),
        integers(weight_shape(geometry), second, ends[1], rng),
    )
    sums = np.empty(geometry.output, np.int64)
    with using(variant):
        operands = [Operand(integers=at(a), lowest=r[0], highest=r[1]) for a, r in [(x, first), (w, second)]]
        gemm.forward(geometry, *operands, None, sums=at(sums))
    np.testing.assert_array_equal(sums, twin.forward_sums(geometry, x, w))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("features", [32896, 65796, 140001])
def test_sums_beyond_32_bits(features, variant):
    """A product of 255 and 255 fits 33025 times into 31 bits."""
    x, w = np.full((2, features, 1, 1), 255, np.uint8), np.full((3, features, 1, 1), 255, np.uint8)
    scale, y, sums = np.full(1, 0.37, F32), np.empty((2, 3), F32), np.empty((2, 3), np.int64)
    one = Operand(integers=at(x), lowest=0, highest=255, scale=at(scale))
    other = Operand(integers=at(w), lowest=0, highest=255, scale=at(scale))
    geometry = linear(features, 3, 2)
    with using(variant):
        gemm.forward(geometry, one, other, at(y))
        gemm.forward(geometry, one, other, None, sums=at(sums))
    assert (sums == 255 * 255 * features).all()
    assert (y == F32(255 * 255 * features) * (scale * scale)).all()
    low = np.full((2, features, 1, 1), -128, np.int8)
    one = Operand(integers=at(low), lowest=-128, highest=127)
    other = Operand(integers=at(low), lowest=-128, highest=127)
    with using(variant):
        gemm.forward(linear(features, 2, 2), one, other, None, sums=at(sums))
    assert (sums.ravel()[:4] == 128 * 128 * features).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("by_pixel", [True, False])
def test_gradients_of_more_outputs_than_32_bits_hold(by_pixel, variant):
    outputs = 70001
    dy, w = np.full((1, outputs, 1, 2), -128, np.int8), np.full((outputs, 1, 1, 1), -128, np.int8)
    geometry = Geometry(
        input=(1, 1, 1, 2),
        outputs=outputs,
        kernel=(1, 1),
        stride=(1, 1),
        padding=(0,) * 4,
        dilation=(1, 1),
        groups=1,
    )
    scale, dx = F32([0.3, 0.7]), np.empty(2, F32)
    one = Operand(integers=at(dy), lowest=-128, highest=127, scale=at(scale), of_pixel=int(by_pixel))
    other = Operand(integers=at(w), lowest=-128, highest=127, scale=at(scale))
    with using(variant):
        gemm.grad_input(geometry, one, other, at(dx))
    exact = F32(128 * 128 * outputs)
    expected = exact * scale * scale[0] if by_pixel else exact * (scale[0] * scale[0])
    np.testing.assert_array_equal(dx, np.broadcast_to(expected, 2))


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_written_or_read_beside(variant):
    """Frames around operands and results; an input's frame would show in the sums if it were multiplied."""
    geometry = square(5, 19, 5, kernel=5, stride=2, batch=3)
    rng = np.random.default_rng(1)
    x, w = (
        integers(geometry.input, (-8, 7), "any", rng),
        integers(weight_shape(geometry), (-8, 7), "any", rng),
    )
    framed = [np.concatenate([np.full(64, 7, np.int8), a.ravel(), np.full(64, 7, np.int8)]) for a in (x, w)]
    one = np.ones(1, F32)
    left, right = (Operand(integers=at(a[64:]), lowest=-8, highest=7, scale=at(one)) for a in framed)
    size = int(np.prod(geometry.output))
    y = np.full(size + 32, 77, F32)
    with using(variant):
        gemm.forward(geometry, left, right, at(y[16:]))
    assert (y[:16] == 77).all() and (y[-16:] == 77).all()
    np.testing.assert_array_equal(y[16:-16].reshape(geometry.output), twin.forward_sums(geometry, x, w))


def test_operands_that_cannot_be():
    with pytest.raises(ValueError, match="from -1 to 128 do not lie in a byte"):
        Operand(integers=0, lowest=-1, highest=128)
    with pytest.raises(ValueError, match="from 0 to 256"):
        Operand(integers=0, lowest=0, highest=256)
    plain = Operand(integers=0, lowest=0, highest=1)
    by_c = Operand(integers=0, lowest=0, highest=1, of_c=1)
    by_n = Operand(integers=0, lowest=0, highest=1, of_n=1)
    with pytest.raises(ValueError, match=r"input has scales along an axis that is summed over \(of_c\)"):
        gemm.forward(square(1, 1, 3), by_c, plain, None)
    with pytest.raises(ValueError, match=r"weight has scales .* \(of_n\)"):
        gemm.grad_input(square(1, 1, 3), plain, by_n, None)


def test_geometries_that_cannot_be():
    plain = Operand(integers=0, lowest=0, highest=1)
    none = square(1, 1, 1, kernel=3)
    none = Geometry(**{**vars(none), "padding": (0, 0, 0, 0)})
    with pytest.raises(ValueError, match="the output would have the shape"):
        gemm.forward(none, plain, plain, None)
    odd = Geometry(**{**vars(square(3, 2, 3)), "groups": 2})
    with pytest.raises(ValueError, match="2 groups do not divide the channels"):
        gemm.forward(odd, plain, plain, None)
