from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.kernels import gemm, kernels, library, why_missing
from lowbit.kernels.gemm import Geometry, Operand
from lowbit.kernels.library import openmp_runtime
from lowbit.numerics import Stochastic, parse_grid
from lowbit.numerics.fused_groups import to_dynamic_bytes
from tests.support.gemm_cases import square

pytestmark = [
    pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_missing()}"),
    pytest.mark.skipif(openmp_runtime() is None, reason="no OpenMP runtime here"),
]


def gradients(geometry: Geometry, by_pixel: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    weight = (geometry.outputs, geometry.input[1] // geometry.groups, *geometry.kernel)
    dy, w = (rng.integers(-8, 8, shape).astype(np.int8) for shape in (geometry.output, weight))
    scale = rng.random((geometry.output[0], *geometry.output[2:]), np.float32)
    dx, y = np.empty(geometry.input, np.float32), np.empty(geometry.output, np.float32)
    x = rng.integers(-8, 8, geometry.input).astype(np.int8)
    of_n, of_pixel = (scale[0].size, 1) if by_pixel else (1, 0)
    gradient, data, data_of_one_scale, weights = (
        Operand(integers=a.ctypes.data, lowest=-8, highest=7, scale=scale.ctypes.data, of_n=n, of_pixel=pixel)
        for a, n, pixel in [(dy, of_n, of_pixel), (x, 1, 0), (x, 0, 0), (w, 0, 0)]
    )
    gemm.grad_input(geometry, gradient, weights, dx.ctypes.data)
    gemm.forward(geometry, data, weights, y.ctypes.data)
    dw = np.empty((2, *weight), np.float32)
    by_sample, shared = (
        Operand(integers=dy.ctypes.data, lowest=-8, highest=7, scale=scale.ctypes.data, of_n=n)
        for n in (1, 0)
    )
    gemm.grad_weight(geometry, by_sample, data, dw[0].ctypes.data)
    gemm.grad_weight(geometry, shared, data_of_one_scale, dw[1].ctypes.data)
    return [dx, y, dw]


@pytest.mark.parametrize("by_pixel", [True, False])
@pytest.mark.parametrize(
    ("batch", "outputs", "side", "stride", "groups"),
    [(9, 40, 8, 1, 1), (2, 100, 9, 2, 2), (1, 7, 30, 2, 1), (40, 3, 2, 1, 1), (5, 24, 9, 2, 12)],
)
def test_the_number_of_threads_changes_nothing(threads, batch, outputs, side, stride, groups, by_pixel):
    geometry = Geometry(
        input=(batch, 12, side, side),
        outputs=outputs - outputs % groups,
        kernel=(3, 3),
        stride=(stride, stride),
        padding=(1, 1, 1, 1),
        dilation=(1, 1),
        groups=groups,
    )
    threads(1)
    assert kernels().threads == 1
    expected = gradients(geometry, by_pixel)
    for number in (2, 3, 5):
        threads(number)
        assert kernels().threads == number
        for one, other in zip(gradients(geometry, by_pixel), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_runtime_is_the_one_that_paddle_has_loaded():
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "libiomp5" in line}
    assert loaded == {openmp_runtime()._name} or (not loaded and openmp_runtime()._name == "libgomp.so.1")


def test_a_wheel_without_one(monkeypatch):
    monkeypatch.setattr(library, "_PADDLE_RUNTIME", "none.so")
    found = openmp_runtime.__wrapped__()
    assert found is None or (found._name == "libgomp.so.1" and found.GOMP_parallel)
    monkeypatch.setattr(library, "_COMPILER_RUNTIME", "none.so")
    assert openmp_runtime.__wrapped__() is None


def test_the_number_of_threads_changes_nothing_by_winograds_transforms_either(threads):
    """Those of portable C++; dW's sums are over more tiles than are taken at a time."""
    geometry = square(40, 50, 17, batch=9)
    before = kernels().variant
    kernels().select_variant("baseline")
    try:
        threads(1)
        expected = gradients(geometry, by_pixel=False)
        for number in (2, 3, 5):
            threads(number)
            for one, other in zip(gradients(geometry, by_pixel=False), expected, strict=True):
                np.testing.assert_array_equal(one, other)
    finally:
        kernels().select_variant(before)


@pytest.mark.parametrize("shape", [(16, 24, 28, 28), (3, 1000, 7, 9), (1, 7, 200, 200), (5, 3, 129, 131)])
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (1, 2, 3), (0, 2, 3), (1,)])
def test_the_number_of_threads_changes_nothing_in_integers(threads, shape, axes):
    """Images large enough to be divided among threads."""
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    draw = Stochastic(seed=1, step=2, layer=3)

    def run() -> list[np.ndarray]:
        found = [
            to_dynamic_bytes(x, parse_grid(grid), axes, [rounding], turns=turns)
            for grid, turns, rounding in (("int8", 0, None), ("int4", 2, None), ("log4", 0, draw))
        ]
        return [tensor.numpy() for q, scale, _ in found for tensor in (q, scale)]

    threads(1)
    expected = run()
    for number in (2, 3, 5):
        threads(number)
        for one, other in zip(run(), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_how_far_threads_are_apart(threads):
    threads(1)
    assert kernels().exchange_time() == 0
    threads(2)
    assert 0 <= kernels().exchange_time() < 1e-3  # 0 if no second thread came in time
