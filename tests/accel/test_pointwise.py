"""1x1 convolutions by the matrix library against a product in fp64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.accel import pointwise as library
from lowbit.kernels.gemm import Geometry

POINTWISE = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}


def pointwise(images: int, inputs: int, outputs: int, height: int, width: int) -> Geometry:
    return Geometry(input=(images, inputs, height, width), outputs=outputs, **POINTWISE)


@pytest.mark.skipif(not library.fits(pointwise(1, 1, 1, 1, 1)), reason="no MKL, or a slow one")
@settings(max_examples=60)
@given(sizes=st.tuples(*[st.integers(1, 20)] * 5), seed=st.integers(0, 99))
def test_products(sizes, seed):
    geometry, random = pointwise(*sizes), np.random.default_rng(seed)
    x, dy = (random.standard_normal(shape).astype(np.float32) for shape in (geometry.input, geometry.output))
    weight = random.standard_normal(geometry.weight).astype(np.float32)
    dx, dweight = np.empty_like(x), np.empty_like(weight)
    y, products = np.empty_like(dy), library.prepared(geometry)
    products.forward(x.ctypes.data, weight.ctypes.data, y.ctypes.data)
    products.grad_input(dy.ctypes.data, weight.ctypes.data, dx.ctypes.data)
    products.grad_weight(x.ctypes.data, dy.ctypes.data, dweight.ctypes.data)
    x, dy, weight = (array.astype(np.float64) for array in (x, dy, weight))
    np.testing.assert_allclose(y, np.einsum("nihw,oi->nohw", x, weight[..., 0, 0]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dx, np.einsum("nohw,oi->nihw", dy, weight[..., 0, 0]), rtol=1e-4, atol=1e-4)
    expected = np.einsum("nohw,nihw->oi", dy, x)[..., None, None]
    np.testing.assert_allclose(dweight, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": (3, 3), "padding": (1, 1, 1, 1)},
        {"stride": (2, 2)},
        {"padding": (1, 0, 0, 0)},
        {"groups": 2},
    ],
)
def test_other_convolutions_are_for_other_libraries(change):
    assert not library.fits(Geometry(input=(2, 4, 6, 6), outputs=8, **POINTWISE | change))


@pytest.mark.parametrize("sizes", [(0, 4, 8, 6, 6), (2, 4, 8, 0, 6)])
def test_nothing_to_add_up_is_for_others(sizes):
    assert not library.fits(pointwise(*sizes))
