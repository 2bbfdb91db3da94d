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
    compare_grad_weight,
    geometries,
    integers,
    operand,
    run,
    using,
)

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}")


@settings(max_examples=400)
@given(
    geometry=geometries(),
    batch=st.integers(1, 9),
    dy_range=st.sampled_from(RANGES),
    x_range=st.sampled_from(RANGES),
    kind=st.sampled_from(["any", "any", "ends", "low", "high"]),
    dy_axes=st.sampled_from(["", "C", "N", "NC"]),
    x_axes=st.sampled_from(["", "", "C", "N"]),
    variant=st.sampled_from(VARIANTS),
    seed=st.integers(0, 2**32 - 1),
)
def test_grad_weight(geometry, batch, dy_range, x_range, kind, dy_axes, x_axes, variant, seed):
    compare_grad_weight(geometry, batch, dy_range, x_range, kind, dy_axes, x_axes, variant, seed)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("geometry", WIDE, ids=lambda g: f"{g.input}")
def test_more_than_one_tile(geometry, variant):
    rng = np.random.default_rng(3)
    dy, x = (integers(shape, (-128, 127), "any", rng) for shape in (geometry.output, geometry.input))
    one = np.ones((1, 1), F32)
    operands = operand(dy, (-128, 127), one), operand(x, (-128, 127), one)
    with using(variant):
        sums = run(geometry, *operands, np.int64)
    np.testing.assert_array_equal(sums, twin.grad_weight_sums(geometry, dy, x).sum(axis=0))


PLAIN = {"kernel": (1, 1), "padding": (0,) * 4, "dilation": (1, 1), "stride": (1, 1), "groups": 1}
LARGE = {
    "many images": Geometry(**PLAIN | {"input": (9, 3, 100, 101), "outputs": 17}),
    "many rows": Geometry(
        **PLAIN | {"input": (4, 7, 150, 150), "outputs": 2, "kernel": (3, 1), "padding": (1, 1, 0, 0)}
    ),
    "long rows": Geometry(**PLAIN | {"input": (2, 2, 2, 40_000), "outputs": 3, "kernel": (1, 2)}),
    "a large picture": Geometry(**PLAIN | {"input": (2, 1, 300, 300), "outputs": 1, "kernel": (2, 1)}),
    "linear": Geometry(**PLAIN | {"input": (70_001, 2, 1, 1), "outputs": 3}),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("name", LARGE)
def test_the_largest_sums(name, by_sample, variant):
    """Nothing overflows on the way, in 16, in 32 bits or beyond: every product is the largest there is."""
    geometry = LARGE[name]
    if by_sample:
        geometry = Geometry(**{**vars(geometry), "input": (min(2, geometry.input[0]), *geometry.input[1:])})
    pixels = geometry.output[0] * geometry.output[2] * geometry.output[3]
    assert by_sample or pixels * 255 * 128 > 2**31
    one = np.ones((geometry.input[0] if by_sample else 1, 1), F32)
    for dy_range, x_range in [
        ((-128, 127), (0, 255)),
        ((-8, 7), (0, 15)),
        ((-64, 64), (-8, 7)),
        ((0, 255),) * 2,
    ]:
        for ends in [("low", "high"), ("high", "high"), ("low", "low")]:
            rng = np.random.default_rng(0)
            dy, x = (
                integers(shape, bounds, end, rng)
                for shape, bounds, end in zip(
                    (geometry.output, geometry.input), (dy_range, x_range), ends, strict=True
                )
            )
            operands = operand(dy, dy_range, one), operand(x, x_range, one)
            of_one = twin.grad_weight_sums(geometry, dy[:1], x[:1])
            sums = np.repeat(of_one, len(one), axis=0) * (geometry.input[0] // len(one))
            with using(variant):
                np.testing.assert_array_equal(run(geometry, *operands, np.int64), sums.sum(axis=0))
                expected = twin.added_samples(sums, F32(1))
                np.testing.assert_array_equal(run(geometry, *operands, F32), expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("dy_range", "x_range"), [((-8, 7), (0, 15)), ((-64, 64), (0, 127)), ((-128, 127), (0, 255))]
)
def test_every_width_of_a_tile(dy_range, x_range, variant):
    """Each is a function of its own in C++; random shapes leave some of them out."""
    rng, one = np.random.default_rng(0), np.ones((1, 1), F32)
    for channels in range(1, 13):
        for outputs in (16, 32):
            geometry = Geometry(**PLAIN | {"input": (5, channels, 3, 4), "outputs": outputs})
            dy, x = (
                integers(shape, bounds, "any", rng)
                for shape, bounds in ((geometry.output, dy_range), (geometry.input, x_range))
            )
            with using(variant):
                found = run(geometry, operand(dy, dy_range, one), operand(x, x_range, one), np.int64)
            np.testing.assert_array_equal(found, twin.grad_weight_sums(geometry, dy, x).sum(axis=0))


def test_scales_by_pixel_are_refused():
    geometry = LARGE["linear"]
    plain = Operand(integers=0, lowest=-8, highest=7)
    by_pixel = Operand(integers=0, lowest=-8, highest=7, of_pixel=1)
    with pytest.raises(ValueError, match=r"grad_output has scales along an axis that is summed over"):
        gemm.grad_weight(geometry, by_pixel, plain, None)
    with pytest.raises(ValueError, match=r"input has scales along"):
        gemm.grad_weight(geometry, plain, by_pixel, None)
