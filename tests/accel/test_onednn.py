"""oneDNN called by its C interface: products of raw tensors, kept convolutions, scratch memory, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from lowbit.accel import onednn, onednn_objects
from lowbit.kernels.gemm import Geometry

MISSING = onednn_objects.why_missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def geometry(channels: int = 3, outputs: int = 5, **changes) -> Geometry:
    values = {
        "input": (2, channels, 6, 7), "outputs": outputs, "kernel": (3, 2), "stride": (2, 1),
        "padding": (1, 0, 2, 1), "dilation": (1, 2), "groups": 1,
    }  # fmt: skip
    return Geometry(**(values | changes))


def whole_numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-7, 8, shape).astype(np.float32)


def windows(of: Geometry, x: np.ndarray) -> np.ndarray:
    """For every output pixel what the kernel sees: [N, C, kernel, output], in plain NumPy."""
    top, bottom, left, right = of.padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    _, _, height, width = of.output
    (rows, columns), (step_y, step_x), (wide_y, wide_x) = of.kernel, of.stride, of.dilation
    found = np.zeros((x.shape[0], x.shape[1], rows, columns, height, width), np.float32)
    for i in range(rows):
        for j in range(columns):
            below, beside = padded[:, :, i * wide_y :], j * wide_x
            found[:, :, i, j] = below[:, :, ::step_y, beside::step_x][:, :, :height, :width]
    return found


def run(of: Geometry, x: np.ndarray, weight: np.ndarray, dy: np.ndarray) -> list[np.ndarray]:
    y, dx, dw = np.empty(of.output, np.float32), np.empty_like(x), np.empty_like(weight)
    product = onednn.prepared(of)
    product.forward(x.ctypes.data, weight.ctypes.data, y.ctypes.data)
    product.grad_input(dy.ctypes.data, weight.ctypes.data, dx.ctypes.data)
    product.grad_weight(x.ctypes.data, dy.ctypes.data, dw.ctypes.data)
    return [y, dx, dw]


def operands(of: Geometry) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return whole_numbers(of.input, 0), whole_numbers(of.weight, 1), whole_numbers(of.output, 2)


@pytest.mark.parametrize("of", [geometry(), geometry(16, 32), geometry(kernel=(1, 1), padding=(0,) * 4)])
def test_sums_of_whole_numbers_are_exact(of):
    x, weight, dy = operands(of)
    y, dx, dw = run(of, x, weight, dy)
    seen = windows(of, x)
    np.testing.assert_array_equal(y, np.einsum("ncijhw,ocij->nohw", seen, weight))
    np.testing.assert_array_equal(dw, np.einsum("ncijhw,nohw->ocij", seen, dy))
    # dX by its definition: <dX, x'> = <dY, conv(x')> for every image x'.
    other = whole_numbers(of.input, 3)
    through = np.einsum("ncijhw,ocij->nohw", windows(of, other), weight)
    assert float((dx * other).sum(dtype=np.float64)) == float((dy * through).sum(dtype=np.float64))


def test_a_convolution_is_prepared_once():
    assert onednn.prepared(geometry()) is onednn.prepared(geometry())
    assert onednn.prepared(geometry()) is not onednn.prepared(geometry(outputs=6))


def test_large_scratch_memory_is_given_back(monkeypatch):
    of = geometry(16, 32)
    run(of, *operands(of))
    monkeypatch.setattr(onednn, "_HELD", 0)
    run(of, *operands(of))
    assert not onednn._scratch._pieces


@pytest.mark.parametrize("part", [1, 4 * 16 * 6 * 7 * 2, 10**9])
def test_a_large_batch_is_convolved_in_parts(part, monkeypatch):
    of = geometry(16, 32, input=(5, 16, 6, 7))
    expected = run(of, *operands(of))  # of whole numbers, whose sums are exact in any order
    onednn.prepared.cache_clear()
    monkeypatch.setattr(onednn, "_HELD", 1)
    monkeypatch.setattr(onednn, "_PART", part)
    try:
        assert isinstance(onednn.prepared(of), onednn.ConvolutionInParts)
        found = run(of, *operands(of))
    finally:
        onednn.prepared.cache_clear()
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_threads_share_a_convolution():
    of = geometry(16, 32)
    expected, found = run(of, *operands(of)), []

    def repeat() -> None:
        found.extend(run(of, *operands(of)) for _ in range(20))

    threads = [threading.Thread(target=repeat) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    for one in found:
        assert all(map(np.array_equal, one, expected))
