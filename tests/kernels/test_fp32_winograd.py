"""Winograd's algorithm in fp32 against a direct convolution in fp64, for every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.kernels import kernels, why_missing
from lowbit.kernels.fp32_winograd import WinogradConvolution, _declared, fits, winograd
from lowbit.kernels.gemm import Geometry
from tests.support.gemm_cases import F32, at, square, using

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")
TOLERANCE = 5e-5  # of the largest value


@st.composite
def geometries(draw) -> Geometry:
    pads, channels = st.integers(0, 2), st.sampled_from([16, 32, 48])
    return Geometry(
        input=(
            draw(st.integers(1, 9)),
            draw(channels),
            draw(st.integers(3, 19)),
            draw(st.integers(3, 37)),
        ),
        outputs=draw(channels),
        kernel=(3, 3),
        stride=(1, 1),
        padding=(draw(pads), draw(pads), draw(pads), draw(pads)),
        dilation=(1, 1),
        groups=1,
    )


def direct(geometry: Geometry, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> list[np.ndarray]:
    """Y, dX and dW in fp64, tap by tap."""
    x, w, dy = (array.astype(np.float64) for array in (x, w, dy))
    top, bottom, left, right = geometry.padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    dpadded, y, dw = np.zeros_like(padded), np.zeros(geometry.output), np.zeros_like(w)
    height, width = geometry.output[2:]
    for i in range(3):
        for j in range(3):
            window = np.s_[:, :, i : i + height, j : j + width]
            y += np.einsum("nchw,kc->nkhw", padded[window], w[:, :, i, j])
            dpadded[window] += np.einsum("nkhw,kc->nchw", dy, w[:, :, i, j])
            dw[:, :, i, j] = np.einsum("nkhw,nchw->kc", dy, padded[window])
    inside = np.s_[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return [y, dpadded[inside], dw]


def by_winograd(geometry: Geometry, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> list[np.ndarray]:
    """The same from the kernels, with a number around each result that must stay."""
    convolution = WinogradConvolution(_declared(kernels().library), geometry)
    found = []
    for product, a, b, shape in (
        (convolution.forward, x, w, geometry.output),
        (convolution.grad_input, dy, w, geometry.input),
        (convolution.grad_weight, x, dy, w.shape),
    ):
        framed = np.full(int(np.prod(shape)) + 2, 77, F32)
        product(at(a), at(b), at(framed[1:]))
        assert framed[0] == framed[-1] == 77
        found.append(framed[1:-1].reshape(shape))
    return found


def operands(geometry: Geometry, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = (geometry.input, geometry.weight, geometry.output)
    return [random.standard_normal(shape).astype(F32) for shape in shapes]


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@settings(max_examples=40)
@given(geometry=geometries(), seed=st.integers(0, 1000))
def test_the_three_products(geometry, seed):
    given_operands = operands(geometry, seed)
    expected = direct(geometry, *given_operands)
    for one, other in zip(by_winograd(geometry, *given_operands), expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("channels", [64, 144])
def test_instruction_sets_and_threads_give_the_same_bits(channels, threads):
    geometry = square(channels, 16, 9, batch=5)
    given_operands, found = operands(geometry, 0), []
    for name in kernels().variants:
        for number in (1, 2, 3):
            threads(number)
            with using(name):
                found.append(by_winograd(geometry, *given_operands))
    for one, other in zip(found[0], direct(geometry, *given_operands), strict=True):
        assert_close(one, other)
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one.view(np.int32), same.view(np.int32))


def test_what_fits():
    sizes = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
    good = {"input": (2, 16, 8, 8), "outputs": 32} | sizes
    assert fits(Geometry(**good))
    for other in (
        {"input": (2, 3, 8, 8)},
        {"outputs": 10},
        {"kernel": (1, 1)},
        {"stride": (2, 2)},
        {"dilation": (2, 2)},
        {"groups": 16},
        {"padding": (3, 1, 1, 1)},
    ):
        assert not fits(Geometry(**good | other)), other


@pytest.mark.parametrize("name", kernels().variants if kernels() else [])
def test_it_is_for_processors_that_multiply_and_add_in_one_instruction(name):
    with using(name):
        assert (winograd(square(16, 16, 8)) is None) == (name == "baseline")
