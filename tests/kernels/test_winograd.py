from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.kernels import gemm, kernels, why_missing
from lowbit.kernels.gemm import Geometry, Multiples, Operand
from tests.support import gemm_reference as twin
from tests.support.gemm_cases import F32, at, integers, scales, square, using, weight_shape

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
# Those without an instruction that is faster with bytes.
VARIANTS = (
    [name for name in kernels().variants if name in ("avx512", "avx2", "baseline")] if kernels() else []
)
# Where AVX2 cannot add two products of bytes in int16; and where it can.
WIDE = [(0, 255), (-128, 127), (-127, 127)]
NARROW = [(0, 15), (-8, 7)]
SIGNED = WIDE[1:]
KINDS = st.sampled_from(["any", "any", "ends", "low", "high"])


@st.composite
def geometries(draw) -> Geometry:
    pads = st.integers(0, 2)
    return Geometry(
        input=(
            draw(st.integers(1, 5)),
            draw(st.integers(16, 40)),
            draw(st.integers(5, 19)),
            draw(st.integers(5, 37)),
        ),
        outputs=draw(st.integers(16, 60)),
        kernel=(3, 3),
        stride=(1, 1),
        padding=(draw(pads), draw(pads), draw(pads), draw(pads)),
        dilation=(1, 1),
        groups=1,
    )


def operand(
    array: np.ndarray, bounds: tuple[int, int], scale: np.ndarray | None = None, **steps: int
) -> Operand:
    low, high = bounds
    return Operand(
        integers=at(array), lowest=low, highest=high, scale=None if scale is None else at(scale), **steps
    )


def terms(geometry: Geometry) -> int:
    batch, outputs, height, width = geometry.output
    return batch * outputs * height * width * geometry.input[1] * math.prod(geometry.kernel)


def by_winograd(product: str, geometry: Geometry) -> int:
    """Multiplications: 36 for every tile of 4 x 4 pixels of the result, or of dy."""
    height, width = (geometry.input if product == "grad_input" else geometry.output)[2:]
    tiles = -(-height // 4) * -(-width // 4)
    return geometry.input[0] * tiles * 36 * geometry.input[1] * geometry.outputs


def run(
    product: str, geometry: Geometry, first: Operand, second: Operand, shape: tuple[int, ...], **bias: int
):
    """The exact sums and the values; and that they are found this way."""
    assert gemm.multiplications(geometry, product, first, second) == by_winograd(product, geometry)
    sums, values = np.full(shape, -77, np.int64), np.full(shape, np.nan, F32)
    getattr(gemm, product)(geometry, first, second, None, sums=at(sums))
    getattr(gemm, product)(geometry, first, second, at(values), **bias)
    return sums, values


cases = given(
    geometry=geometries(),
    first=st.sampled_from(WIDE),
    second=st.sampled_from(WIDE),
    kind=KINDS,
    shared=st.booleans(),
    variant=st.sampled_from(VARIANTS or ["none"]),
    seed=st.integers(0, 2**32 - 1),
)


@settings(max_examples=120)
@cases
def test_forward(geometry, first, second, kind, shared, variant, seed):
    rng = np.random.default_rng(seed)
    x, w = integers(geometry.input, first, kind, rng), integers(weight_shape(geometry), second, kind, rng)
    scale_x, scale_w = scales((len(x),), rng), scales((geometry.outputs,), rng)
    bias = rng.normal(size=geometry.outputs).astype(F32)
    left, right = operand(x, first, scale_x, of_n=int(not shared)), operand(w, second, scale_w, of_n=1)
    with using(variant):
        sums, y = run("forward", geometry, left, right, geometry.output, bias=at(bias))
    np.testing.assert_array_equal(sums, twin.forward_sums(geometry, x, w))
    scale = scale_x[0 if shared else slice(None)].reshape(-1, 1, 1, 1) * scale_w[:, None, None]
    np.testing.assert_array_equal(y, sums.astype(F32) * scale + bias[:, None, None])


@settings(max_examples=120)
@cases
def test_forward_as_multiples(geometry, first, second, kind, shared, variant, seed):
    rng = np.random.default_rng(seed)
    x, w = integers(geometry.input, first, kind, rng), integers(weight_shape(geometry), second, kind, rng)
    exact = twin.forward_sums(geometry, x, w)
    operands = operand(x, first), operand(w, second)
    with using(variant):
        assert gemm.gives_multiples(geometry, *operands)
        low, high = np.full(geometry.output, 7, np.uint16), np.full(geometry.output, 7, np.int8)
        fits = gemm.forward_multiples(geometry, *operands, Multiples(at(low), at(high)))
        narrow = np.full(geometry.output, 7, np.int16)
        fits_16 = gemm.forward_multiples(geometry, *operands, Multiples(at(narrow)))
    assert fits == (exact.min() >= -(2**23) and exact.max() < 2**23)
    assert fits_16 == (exact.min() >= -(2**15) and exact.max() < 2**15)
    if fits:
        np.testing.assert_array_equal(high.astype(np.int64) * 65536 + low, exact)
    if fits_16:
        np.testing.assert_array_equal(narrow, exact)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("side", [8, 29])
def test_four_bits_as_multiples(side, variant):
    """In int16, which holds them all; also by outputs, where there are more channels than tiles."""
    geometry, rng = square(50, 67, side, batch=2), np.random.default_rng(side)
    unsigned, signed = NARROW
    x = integers(geometry.input, unsigned, "any", rng)
    w = integers(weight_shape(geometry), signed, "any", rng)
    narrow = np.full(geometry.output, 7, np.int16)
    with using(variant):
        assert gemm.forward_multiples(
            geometry, operand(x, unsigned), operand(w, signed), Multiples(at(narrow))
        )
    np.testing.assert_array_equal(narrow, twin.forward_sums(geometry, x, w))


@settings(max_examples=120)
@cases
def test_grad_input(geometry, first, second, kind, shared, variant, seed):
    rng = np.random.default_rng(seed)
    dy, w = integers(geometry.output, first, kind, rng), integers(weight_shape(geometry), second, kind, rng)
    scale_dy, scale_w = scales((len(dy),), rng), scales((geometry.input[1],), rng)
    left, right = operand(dy, first, scale_dy, of_n=1), operand(w, second, scale_w, of_c=int(not shared))
    with using(variant):
        sums, dx = run("grad_input", geometry, left, right, geometry.input)
    np.testing.assert_array_equal(sums, twin.grad_input_sums(geometry, dy, w))
    scale_w = scale_w[0 if shared else slice(None)].reshape(-1, 1, 1)
    np.testing.assert_array_equal(dx, sums.astype(F32) * (scale_dy[:, None, None, None] * scale_w))


@settings(max_examples=120)
@cases
def test_grad_weight(geometry, first, second, kind, shared, variant, seed):
    first = first if first in SIGNED else SIGNED[0]  # 16 bits do not hold the points of other gradients
    rng = np.random.default_rng(seed)
    dy, x = integers(geometry.output, first, kind, rng), integers(geometry.input, second, kind, rng)
    scale_dy, scale_x = scales((geometry.outputs,), rng), scales((geometry.input[1],), rng)
    left, right = operand(dy, first, scale_dy, of_c=1), operand(x, second, scale_x, of_c=int(not shared))
    with using(variant):
        sums, dw = run("grad_weight", geometry, left, right, weight_shape(geometry))
    np.testing.assert_array_equal(sums, twin.grad_weight_sums(geometry, dy, x).sum(axis=0))
    scale_x = scale_x[0 if shared else slice(None)].reshape(-1, 1, 1)
    np.testing.assert_array_equal(dw, sums.astype(F32) * (scale_dy[:, None, None, None] * scale_x))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("side", [8, 28])
@pytest.mark.parametrize("kind", ["any", "low"])
def test_four_bits(kind, side, variant):
    geometry, rng = square(50, 67, side, batch=2), np.random.default_rng(side)
    unsigned, signed = NARROW
    x, w = integers(geometry.input, unsigned, kind, rng), integers(weight_shape(geometry), signed, kind, rng)
    dy, one = integers(geometry.output, signed, kind, rng), np.ones(1, F32)
    of_x, of_w, of_dy = operand(x, unsigned, one), operand(w, signed, one), operand(dy, signed, one)
    with using(variant):
        y, _ = run("forward", geometry, of_x, of_w, geometry.output)
        dx, _ = run("grad_input", geometry, of_dy, of_w, geometry.input)
        dw, _ = run("grad_weight", geometry, of_dy, of_x, weight_shape(geometry))
    np.testing.assert_array_equal(y, twin.forward_sums(geometry, x, w))
    np.testing.assert_array_equal(dx, twin.grad_input_sums(geometry, dy, w))
    np.testing.assert_array_equal(dw, twin.grad_weight_sums(geometry, dy, x).sum(axis=0))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["any", "ends", "low", "high"])
@pytest.mark.parametrize("channels", [114, 116, 231])  # the largest values leave 26 bits from 116 on
def test_results_of_more_than_26_bits_are_computed_in_parts(channels, kind, variant):
    geometry, rng = square(channels, 30, 9), np.random.default_rng(0)
    x, w = (
        integers(geometry.input, (0, 255), kind, rng),
        integers(weight_shape(geometry), SIGNED[0], kind, rng),
    )
    one = np.ones(1, F32)
    with using(variant):
        sums, y = run(
            "forward", geometry, operand(x, (0, 255), one), operand(w, SIGNED[0], one), geometry.output
        )
    np.testing.assert_array_equal(sums, twin.forward_sums(geometry, x, w))
    np.testing.assert_array_equal(y, sums.astype(F32))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ends", [("low", "low"), ("low", "high"), ("high", "low"), ("high", "high")])
def test_a_weights_gradient_whose_sums_leave_32_bits_on_the_way(ends, variant):
    """Over 1,152 tiles: a pass over 64 of the largest is exact, and int32 holds about 4,000."""
    geometry = square(16, 16, 96, batch=2)
    rng = np.random.default_rng(0)
    dy, x = (
        integers(geometry.output, (-128, 127), ends[0], rng),
        integers(geometry.input, (0, 255), ends[1], rng),
    )
    one = np.ones(1, F32)
    left, right = operand(dy, (-128, 127), one), operand(x, (0, 255), one)
    with using(variant):
        sums, dw = run("grad_weight", geometry, left, right, weight_shape(geometry))
    np.testing.assert_array_equal(sums, twin.grad_weight_sums(geometry, dy, x).sum(axis=0))
    np.testing.assert_array_equal(dw, sums.astype(F32))


@pytest.mark.parametrize("variant", VARIANTS)
def test_where_it_is_not_exact_or_does_not_pay_it_is_not_used(variant):
    """Also by sample and by pixel, whose sums are not over all images or taps."""

    def used(product: str, geometry: Geometry, first: Operand, second: Operand) -> bool:
        with using(variant):
            count = gemm.multiplications(geometry, product, first, second)
        assert count in (terms(geometry), by_winograd(product, geometry))
        return count == by_winograd(product, geometry)

    wide, plain = Operand(integers=0, lowest=-128, highest=127), square(64, 64, 8)
    assert all(used(product, plain, wide, wide) for product in ("forward", "grad_input", "grad_weight"))
    by_n, by_pixel = (
        Operand(integers=0, lowest=-128, highest=127, **{axis: 1}) for axis in ("of_n", "of_pixel")
    )
    assert not used("grad_weight", square(64, 64, 8, batch=2), by_n, wide)
    assert not used("grad_input", plain, by_pixel, wide)
    assert not used("forward", square(2**14, 64, 8), wide, wide)  # sums that int32 does not hold
    assert not used("forward", square(64, 64, 1), wide, wide)  # one pixel of a tile's sixteen
    assert not used("forward", square(8, 64, 8), wide, wide)
    assert not used("forward", square(64, 64, 8, kernel=5), wide, wide)
    assert not used("forward", square(64, 64, 8, stride=2), wide, wide)
    bright = Operand(integers=0, lowest=0, highest=255)
    assert used("grad_weight", plain, wide, bright)
    assert not used("grad_weight", plain, bright, wide)  # points that 16 bits do not hold
    narrow = Operand(integers=0, lowest=-8, highest=7)
    assert used("forward", plain, narrow, narrow)
    assert used("forward", square(16, 16, 8), narrow, narrow)
    assert used("grad_weight", square(64, 64, 14), narrow, narrow)
    few, odd = square(24, 24, 14), square(64, 64, 9)  # where bytes are faster
    assert (
        used("forward", few, narrow, narrow)
        == used("forward", odd, narrow, narrow)
        == (variant == "baseline")
    )


def test_with_vnni_bytes_are_multiplied_as_they_are():
    wide = Operand(integers=0, lowest=-128, highest=127)
    for variant in kernels().variants:
        with using(variant):
            count = gemm.multiplications(square(64, 64, 8), "forward", wide, wide)
            gives = gemm.gives_multiples(square(64, 64, 8), wide, wide)
        assert (count == terms(square(64, 64, 8))) == ("vnni" in variant or variant == "amx") == (not gives)
