"""The direct kernels for depthwise convolutions, by the same twins as the other products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.kernels import fp32_depthwise, gemm, kernels, why_missing
from lowbit.kernels.gemm import Geometry, Operand
from tests.support import gemm_reference as twin
from tests.support.gemm_cases import (
    F32,
    RANGES,
    VARIANTS,
    at,
    compare_forward,
    compare_grad_input,
    compare_grad_weight,
    geometries,
    integers,
    using,
)

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


@st.composite
def depthwise_geometries(draw) -> Geometry:
    geometry, channels = draw(geometries()), draw(st.integers(2, 9))
    batch, _, height, width = geometry.input
    return Geometry(
        **vars(geometry)
        | {
            "input": (batch * draw(st.integers(1, 3)), channels, height, width),
            "outputs": channels * draw(st.integers(1, 3)),
            "groups": channels,
        }
    )


cases = given(
    geometry=depthwise_geometries(),
    first=st.sampled_from(RANGES),
    second=st.sampled_from(RANGES),
    kind=st.sampled_from(["any", "any", "ends", "low", "high"]),
    axes=st.tuples(st.sampled_from(["", "C", "N", "NC"]), st.sampled_from(["", "", "C", "N"])),
    variant=st.sampled_from(VARIANTS),
    seed=st.integers(0, 2**32 - 1),
)


@settings(max_examples=400)
@cases
def test_depthwise(geometry, first, second, kind, axes, variant, seed):
    compare_forward(geometry, first, second, kind, variant, seed)
    compare_grad_input(geometry, first, second, kind, variant, seed)
    batch = geometry.input[0]
    compare_grad_weight(geometry, batch, first, second, kind, *axes, variant, seed)


def layer(side: int, batch: int, kernel: int = 3, multiplier: int = 1) -> Geometry:
    return Geometry(
        input=(batch, 2, side, side), outputs=2 * multiplier, kernel=(kernel, kernel), stride=(1, 1),
        padding=(kernel // 2,) * 4, dilation=(1, 1), groups=2,
    )  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ends", [("low", "low"), ("high", "high"), ("low", "high")])
@pytest.mark.parametrize("bounds", [((-128, 127), (0, 255)), ((0, 255), (0, 255)), ((-8, 7), (0, 15))])
@pytest.mark.parametrize("geometry", [layer(300, 2), layer(7, 700, kernel=1), layer(5, 3, 7, multiplier=700)])
def test_the_largest_sums(geometry, bounds, ends, variant):
    """Of 90000 pixels, of many images, and of more outputs of one channel than 32 bits could hold."""
    rng = np.random.default_rng(0)
    weight = (geometry.outputs, 1, *geometry.kernel)
    dy, x = (
        integers(shape, bound, end, rng)
        for shape, bound, end in zip((geometry.output, geometry.input), bounds, ends, strict=True)
    )
    w = integers(weight, bounds[1], ends[1], rng)
    of_dy, of_x, of_w = (
        Operand(integers=at(array), lowest=low, highest=high)
        for array, (low, high) in ((dy, bounds[0]), (x, bounds[1]), (w, bounds[1]))
    )
    found = [np.empty(shape, np.int64) for shape in (geometry.output, geometry.input, weight)]
    with using(variant):
        gemm.forward(geometry, of_x, of_w, None, sums=at(found[0]))
        gemm.grad_input(geometry, of_dy, of_w, None, sums=at(found[1]))
        gemm.grad_weight(geometry, of_dy, of_x, None, sums=at(found[2]))
    np.testing.assert_array_equal(found[0], twin.forward_sums(geometry, x, w))
    np.testing.assert_array_equal(found[1], twin.grad_input_sums(geometry, dy, w))
    np.testing.assert_array_equal(found[2], twin.grad_weight_sums(geometry, dy, x).sum(axis=0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_written_beside(variant):
    """Results in a frame; every geometry is one that leaves rows and columns of the planes out."""
    geometry = Geometry(
        input=(3, 5, 11, 9), outputs=10, kernel=(3, 5), stride=(2, 3), padding=(1, 0, 2, 3), dilation=(1, 2),
        groups=5,
    )  # fmt: skip
    one, rng = np.ones(1, F32), np.random.default_rng(0)
    shapes = {"x": geometry.input, "y": geometry.output, "w": (10, 1, 3, 5)}
    arrays = {name: integers(shape, (-8, 7), "any", rng) for name, shape in shapes.items()}
    x, y, w = (Operand(integers=at(a), lowest=-8, highest=7, scale=at(one)) for a in arrays.values())
    for product, operands, name in [
        (gemm.forward, (x, w), "y"),
        (gemm.grad_input, (y, w), "x"),
        (gemm.grad_weight, (y, x), "w"),
    ]:
        framed = np.full(np.prod(shapes[name]) + 64, 0.5, F32)
        with using(variant):
            product(geometry, *operands, at(framed[32:]))
        assert {*framed[:32], *framed[-32:]} == {0.5} and 0.5 not in framed[32:-32]


def grad_weight_in_fp64(geometry: Geometry, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """dW of one output per channel, tap by tap."""
    top, bottom, left, right = geometry.padding
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    dw = np.zeros((geometry.outputs, 1, *geometry.kernel))
    for i in range(geometry.kernel[0]):
        for j in range(geometry.kernel[1]):
            rows, columns = (
                slice(tap * dilation, tap * dilation + (size - 1) * stride + 1, stride)
                for tap, dilation, stride, size in zip(
                    (i, j), geometry.dilation, geometry.stride, geometry.output[2:], strict=True
                )
            )
            dw[:, 0, i, j] = (padded[:, :, rows, columns] * dy).sum((0, 2, 3))
    return dw


@settings(max_examples=200)
@given(
    geometry=depthwise_geometries(),
    kind=st.sampled_from(["float32", "int8", "uint8"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_grad_weight_in_fp32(geometry, kind, seed):
    geometry = replace(geometry, outputs=geometry.groups)
    assert fp32_depthwise.fits(geometry)
    random = np.random.default_rng(seed)
    x, dy = (random.standard_normal(shape).astype(F32) for shape in (geometry.input, geometry.output))
    scale = 1.0 if kind == "float32" else 0.375
    x = np.abs(x) if kind == "uint8" else x
    x = x if kind == "float32" else np.clip(np.round(40 * x), -128, 127).astype(kind)
    expected, found = grad_weight_in_fp64(geometry, x, dy) * scale, []
    for variant in VARIANTS:
        framed = np.full(expected.size + 2, 77, F32)
        with using(variant):
            fp32_depthwise.grad_weight(geometry, at(x), at(dy), at(framed[1:]), kind=kind, scale=scale)
        assert framed[0] == framed[-1] == 77
        found.append(framed[1:-1].reshape(expected.shape))
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))
    assert all((other == found[0]).all() for other in found)
