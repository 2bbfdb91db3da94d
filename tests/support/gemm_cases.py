"""Shapes and operands of integer products, and each product compared with its readable twin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from lowbit.kernels import gemm, kernels
from lowbit.kernels.gemm import Geometry, Operand
from lowbit.kernels.library import openmp_runtime
from tests.support import gemm_reference as twin

VARIANTS = kernels().variants if kernels() else ["none"]
F32 = np.float32
# Bounds of integers: signed, unsigned and narrow ones, log-scale ones, sums of two samples; together with
# each other, with AVX2, sums of 16 bits that hold no step of the largest ones, one, a few, or many.
RANGES = [
    *((-2, 1), (-1, 1), (0, 3), (-4, 3), (-8, 7), (-7, 7), (0, 15), (-16, 16), (-32, 31), (-64, 64), (0, 63)),
    *(
        (-63, 63),
        (0, 127),
        (-127, 127),
        (-128, 127),
        (0, 255),
        (3, 5),
        (-5, -3),
        (0, 0),
        (-50, 51),
        (-128, 7),
    ),
]


@contextmanager
def using(variant: str) -> Iterator[None]:
    before = kernels().variant
    kernels().select_variant(variant)
    try:
        yield
    finally:
        kernels().select_variant(before)


@contextmanager
def on_threads(number: int) -> Iterator[None]:
    """Kernels run on so many threads."""
    runtime = openmp_runtime()
    before = runtime.omp_get_max_threads()
    runtime.omp_set_num_threads(number)
    try:
        yield
    finally:
        runtime.omp_set_num_threads(before)


def at(array: np.ndarray) -> int:
    return array.ctypes.data


def integers(
    shape: tuple[int, ...], bounds: tuple[int, int], kind: str, rng: np.random.Generator
) -> np.ndarray:
    """All over the range, or all of them at one of its ends, or at either."""
    low, high = bounds
    kinds = {"low": [low], "high": [high], "ends": [low, high], "any": range(low, high + 1)}
    return rng.choice(np.array(kinds[kind], np.int8 if low < 0 else np.uint8), shape)


def scales(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return np.exp(rng.normal(-5, 2, shape)).astype(F32)


@st.composite
def geometries(draw) -> Geometry:
    small, pads = st.integers(1, 3), st.integers(0, 3)
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    geometry = Geometry(
        input=(
            draw(st.integers(1, 4)),
            groups * draw(st.integers(1, 21)),
            draw(st.integers(1, 12)),
            draw(st.integers(1, 12)),
        ),
        outputs=groups * draw(st.integers(1, 37)),
        kernel=(draw(st.integers(1, 7)), draw(st.integers(1, 7))),
        stride=(draw(small), draw(small)),
        padding=(draw(pads), draw(pads), draw(pads), draw(pads)),
        dilation=(draw(small), draw(small)),
        groups=groups,
    )
    sizes = zip(geometry.input[2:], geometry.padding[::2], geometry.padding[1::2], strict=True)
    reach = [d * (k - 1) + 1 for d, k in zip(geometry.dilation, geometry.kernel, strict=True)]
    assume(all(size + before + after >= r for (size, before, after), r in zip(sizes, reach, strict=True)))
    return geometry


def weight_shape(geometry: Geometry) -> tuple[int, ...]:
    return (geometry.outputs, geometry.input[1] // geometry.groups, *geometry.kernel)


def square(
    channels: int, outputs: int, side: int, kernel: int = 3, stride: int = 1, batch: int = 1
) -> Geometry:
    return Geometry(
        input=(batch, channels, side, side),
        outputs=outputs,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(kernel // 2,) * 4,
        dilation=(1, 1),
        groups=1,
    )


def linear(features: int, outputs: int, batch: int) -> Geometry:
    return square(features, outputs, 1, kernel=1, batch=batch)


def compare_forward(geometry, first, second, kind, variant, seed):
    rng = np.random.default_rng(seed)
    x, w = (integers(s, r, kind, rng) for s, r in [(geometry.input, first), (weight_shape(geometry), second)])
    by_n, by_output, with_bias = rng.integers(0, 2, 3)
    scale_x, scale_w = scales((geometry.input[0],), rng), scales((geometry.outputs,), rng)
    bias = rng.standard_normal(geometry.outputs).astype(F32)
    left = Operand(integers=at(x), lowest=first[0], highest=first[1], scale=at(scale_x), of_n=int(by_n))
    right = Operand(
        integers=at(w), lowest=second[0], highest=second[1], scale=at(scale_w), of_n=int(by_output)
    )
    sums, y = np.full(geometry.output, -77, np.int64), np.full(geometry.output, np.nan, F32)
    with using(variant):
        gemm.forward(geometry, left, right, None, sums=at(sums))
        gemm.forward(geometry, left, right, at(y), bias=at(bias) if with_bias else None)
    exact = twin.forward_sums(geometry, x, w)
    np.testing.assert_array_equal(sums, exact)
    scale = (
        scale_x[by_n * np.arange(geometry.input[0]), None] * scale_w[by_output * np.arange(geometry.outputs)]
    )
    expected = exact.astype(F32) * scale[..., None, None]
    np.testing.assert_array_equal(y, expected + bias[:, None, None] if with_bias else expected)


def compare_grad_input(geometry, first, second, kind, variant, seed):
    rng = np.random.default_rng(seed)
    dy, w = (
        integers(s, r, kind, rng) for s, r in [(geometry.output, first), (weight_shape(geometry), second)]
    )
    batch, _, height, width = geometry.output
    by_n, by_pixel, by_input = rng.integers(0, 2, 3)
    scale_dy = scales((batch, height, width) if by_pixel else (batch,), rng)
    scale_w = scales((w.shape[1],), rng)
    left = Operand(
        integers=at(dy),
        lowest=first[0],
        highest=first[1],
        scale=at(scale_dy),
        of_n=int(by_n) * (height * width if by_pixel else 1),
        of_pixel=int(by_pixel),
    )
    right = Operand(
        integers=at(w), lowest=second[0], highest=second[1], scale=at(scale_w), of_c=int(by_input)
    )
    sums, dx = np.full(geometry.input, -77, np.int64), np.full(geometry.input, np.nan, F32)
    with using(variant):
        gemm.grad_input(geometry, left, right, None, sums=at(sums))
        gemm.grad_input(geometry, left, right, at(dx))
    exact = twin.grad_input_sums(geometry, dy, w)
    np.testing.assert_array_equal(sums, exact)
    scale_dy = scale_dy[by_n * np.arange(batch)]
    scale_w = np.tile(scale_w[by_input * np.arange(w.shape[1])], geometry.groups)[:, None, None]
    if by_pixel:
        expected = twin.added_taps(geometry, dy, w, scale_dy[:, None]) * scale_w
    else:
        expected = exact.astype(F32) * (scale_dy[:, None, None, None] * scale_w)
    np.testing.assert_array_equal(dx, expected)


# Whole tiles of AMX, tails, and both; rows of images that end within a tile, with it and behind it.
WIDE = [
    square(64, 40, 28, batch=2),
    square(68, 33, 7, batch=5),
    square(20, 16, 34),
    square(100, 19, 17, stride=2, batch=2),
    square(16, 50, 9, kernel=5, batch=3),
    linear(200, 70, 37),
    # Steps from row to row and from image to image make up for each other, sixteen places on.
    Geometry(
        input=(20, 256, 8, 7),
        outputs=64,
        kernel=(2, 1),
        stride=(1, 4),
        padding=(0,) * 4,
        dilation=(1, 1),
        groups=1,
    ),
]


FRAME = 8  # values around a result that must stay as they were


def run(geometry: Geometry, dy: Operand, x: Operand, kind: type) -> np.ndarray:
    """The sums (int64) or the gradient (fp32)."""
    shape = (geometry.outputs, geometry.input[1] // geometry.groups, *geometry.kernel)
    framed = np.full(np.prod(shape) + 2 * FRAME, 77, kind)
    address = at(framed[FRAME:])
    if kind is np.int64:
        gemm.grad_weight(geometry, dy, x, None, sums=address)
    else:
        gemm.grad_weight(geometry, dy, x, address)
    assert {*framed[:FRAME], *framed[-FRAME:]} == {77}
    return framed[FRAME:-FRAME].reshape(shape)


def expected_values(
    geometry: Geometry, sums: np.ndarray, scale_dy: np.ndarray, scale_x: np.ndarray
) -> np.ndarray:
    """Scales are [batch or 1, channels or 1]."""
    batch, outputs, per_group = sums.shape[:3]
    of_x = np.broadcast_to(scale_x, (batch, geometry.input[1])).reshape(batch, geometry.groups, 1, per_group)
    of_x = np.repeat(of_x, outputs // geometry.groups, axis=2).reshape(batch, outputs, per_group)
    scale = (np.broadcast_to(scale_dy, (batch, outputs))[:, :, None] * of_x)[..., None, None]
    if len(scale_dy) == len(scale_x) == 1:
        return sums.sum(axis=0).astype(F32) * scale[0]
    return twin.added_samples(sums, scale)


def operand(array: np.ndarray, bounds: tuple[int, int], scale: np.ndarray) -> Operand:
    n, c = scale.shape
    strides = {"of_n": c if n > 1 else 0, "of_c": 1 if c > 1 else 0}
    return Operand(integers=at(array), lowest=bounds[0], highest=bounds[1], scale=at(scale), **strides)


def compare_grad_weight(geometry, batch, dy_range, x_range, kind, dy_axes, x_axes, variant, seed):
    geometry = Geometry(**{**vars(geometry), "input": (batch, *geometry.input[1:])})
    rng = np.random.default_rng(seed)
    dy, x = integers(geometry.output, dy_range, kind, rng), integers(geometry.input, x_range, kind, rng)
    scale_dy, scale_x = (
        scales((batch if "N" in axes else 1, array.shape[1] if "C" in axes else 1), rng)
        for axes, array in ((dy_axes, dy), (x_axes, x))
    )
    operands = operand(dy, dy_range, scale_dy), operand(x, x_range, scale_x)
    sums = twin.grad_weight_sums(geometry, dy, x)
    with using(variant):
        np.testing.assert_array_equal(run(geometry, *operands, np.int64), sums.sum(axis=0))
        expected = expected_values(geometry, sums, scale_dy, scale_x)
        np.testing.assert_array_equal(run(geometry, *operands, F32), expected)


def grad_weight(geometry: Geometry) -> None:
    dy, x = (np.ones(shape, np.int8) for shape in (geometry.output, geometry.input))
    one, dw = np.ones(1, np.float32), np.empty(geometry.weight, np.float32)
    operands = [Operand(integers=a.ctypes.data, lowest=-8, highest=7, scale=one.ctypes.data) for a in (dy, x)]
    gemm.grad_weight(geometry, *operands, dw.ctypes.data)
