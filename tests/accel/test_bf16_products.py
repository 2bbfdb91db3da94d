"""Products by the processor's bf16 instructions, against the emulation."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from lowbit.accel import bf16_products, onednn_objects
from lowbit.accel.amp_autocast import rounding
from lowbit.machine.cpu import CPU_VARIABLE
from lowbit.numerics.grid import BF16, round_to_grid

native = pytest.mark.skipif(bf16_products.why_not() is not None, reason=str(bf16_products.why_not()))


def _tensor(rng: np.random.Generator, *shape: int) -> paddle.Tensor:
    tensor = paddle.to_tensor(rng.standard_normal(shape).astype("f4"))
    tensor.stop_gradient = False
    return tensor


def _both(compute, *shapes: tuple[int, ...]) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Results and gradients, emulated and native, of the same values."""
    sides = []
    for is_native in (False, True):
        rng = np.random.default_rng(7)
        inputs = [_tensor(rng, *shape) for shape in shapes]
        with rounding(BF16, "O1", native=is_native):
            y = compute(*inputs)
        (y * paddle.to_tensor(rng.standard_normal(y.shape).astype("f4"))).sum().backward()
        sides.append([y.numpy(), *(tensor.grad.numpy() for tensor in inputs)])
    return list(zip(*sides, strict=True))


def _on_grid(values: np.ndarray) -> bool:
    return bool((values.view("u4") & 0xFFFF == 0).all())


def _assert_close(emulated: np.ndarray, computed: np.ndarray) -> None:
    """Sums in another order, rounded to 8 bits: seldom another value, and then the next one."""
    assert computed.shape == emulated.shape
    scale = np.abs(emulated).max()
    np.testing.assert_allclose(computed, emulated, rtol=2**-7, atol=1e-5 * scale)
    assert (computed != emulated).mean() < 0.02
    assert np.isfinite(computed).all()


CONVOLUTIONS = {
    "3x3": ((2, 16, 9, 11), (24, 16, 3, 3), {"padding": 1}),
    "stem": ((2, 3, 17, 17), (16, 3, 7, 7), {"padding": 3, "stride": 2}),
    "1x1": ((3, 5, 6, 6), (7, 5, 1, 1), {}),
    "groups": ((2, 8, 7, 7), (8, 4, 3, 3), {"groups": 2, "dilation": 2, "padding": [2, 1]}),
    "depthwise": ((2, 24, 8, 8), (24, 1, 3, 3), {"groups": 24, "padding": [1, 0, 2, 1]}),
}


@native
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case):
    x, weight, settings = CONVOLUTIONS[case]
    for emulated, computed in _both(lambda x, weight: F.conv2d(x, weight, **settings), x, weight):
        _assert_close(emulated, computed)
        assert _on_grid(computed)


MATRICES = {
    "matrices": ((9, 33), (33, 17), False, False),
    "transposed": ((33, 9), (17, 33), True, True),
    "transposed left": ((2, 33, 9), (2, 33, 5), True, False),
    "one for all": ((2, 3, 33), (33, 4), False, False),
    "one for all, transposed": ((2, 3, 33), (4, 33), False, True),
    "as many": ((2, 3, 5, 33), (2, 3, 33, 4), False, False),
    "a single row": ((1, 33), (33, 1), False, False),
}


@native
@pytest.mark.parametrize("case", MATRICES)
def test_matrix_product(case):
    x, y, left, right = MATRICES[case]
    for emulated, computed in _both(lambda x, y: paddle.matmul(x, y, left, right), x, y):
        _assert_close(emulated, computed)
        assert _on_grid(computed)
    if not (left or right):
        for emulated, computed in _both(lambda x, y: x @ y, x, y):
            _assert_close(emulated, computed)


@native
@pytest.mark.parametrize("shape", [(9, 33), (2, 5, 33)])
def test_linear(shape):
    results = _both(F.linear, shape, (33, 8), (8,))
    for emulated, computed in results:
        _assert_close(emulated, computed)
    assert _on_grid(results[0][1])
    np.testing.assert_allclose(*results[3], rtol=1e-5, atol=1e-5)  # of the bias, in fp32


@native
def test_exact_sums_have_the_same_bits():
    """Small integers are exact in bf16 and in any order of sums, so that only roundings could differ."""
    rng = np.random.default_rng(0)
    x = paddle.to_tensor(rng.integers(-9, 9, (2, 8, 6, 6)).astype("f4"))
    weight = paddle.to_tensor(rng.integers(-9, 9, (8, 8, 3, 3)).astype("f4"))
    for tensor in (x, weight):
        tensor.stop_gradient = False
    found = []
    for is_native in (False, True):
        with rounding(BF16, "O1", native=is_native):
            y = F.conv2d(x, weight, padding=1)
        y.backward(round_to_grid(y.detach(), BF16))
        found.append([y.numpy(), x.grad.numpy(), weight.grad.numpy()])
        x.clear_grad(), weight.clear_grad()
    np.testing.assert_array_equal(found[0][0], found[1][0])
    for emulated, computed in zip(*found, strict=True):
        _assert_close(emulated, computed)


@native
def test_what_is_not_covered_is_emulated():
    rng = np.random.default_rng(0)
    x, y = _tensor(rng, 2, 1, 3, 4), _tensor(rng, 5, 4, 3)  # broadcast
    image, weight = _tensor(rng, 1, 6, 6, 3), _tensor(rng, 4, 3, 3, 3)
    transposed, kernel = _tensor(rng, 1, 3, 4, 4), _tensor(rng, 3, 2, 3, 3)
    for compute in (
        lambda: x @ y,
        lambda: F.conv2d(image, weight, data_format="NHWC"),
        lambda: F.conv2d_transpose(transposed, kernel),
        lambda: paddle.einsum("ij,jk->ik", x[0, 0], y[0]),
    ):
        results = []
        for is_native in (False, True):
            with rounding(BF16, "O1", native=is_native):
                results.append(compute().numpy())
        np.testing.assert_array_equal(*results)


@native
def test_frozen_operands_get_no_gradient():
    rng = np.random.default_rng(0)
    x, weight = _tensor(rng, 1, 3, 5, 5), _tensor(rng, 4, 3, 3, 3)
    x.stop_gradient = True
    with rounding(BF16, "O1", native=True):
        F.conv2d(x, weight).sum().backward()
    assert x.grad is None and weight.grad is not None


@native
def test_an_operand_that_was_changed_is_an_error():
    rng = np.random.default_rng(0)
    x, weight = _tensor(rng, 1, 3, 5, 5), _tensor(rng, 4, 3, 3, 3)
    with rounding(BF16, "O1", native=True):
        y = F.conv2d(x, weight)
    with paddle.no_grad():
        x.add_(paddle.ones_like(x))
    with pytest.raises(OSError, match="changed"):  # Paddle's, with our message inside
        y.sum().backward()


@native
def test_gradients_of_gradients_are_refused():
    rng = np.random.default_rng(0)
    x, weight = _tensor(rng, 1, 3, 5, 5), _tensor(rng, 4, 3, 3, 3)
    with rounding(BF16, "O1", native=True):
        y = F.conv2d(x, weight)
    with pytest.raises(OSError, match="second-order gradients"):
        paddle.grad(y.sum(), x, create_graph=True)


@native
def test_a_network_learns_as_emulated():
    losses = []
    for is_native in (False, True):
        paddle.seed(0)
        rng = np.random.default_rng(1)
        net = nn.Sequential(
            nn.Conv2D(3, 8, 3, stride=2), nn.BatchNorm2D(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 5)
        )
        rule = paddle.optimizer.Momentum(0.05, parameters=net.parameters())
        x = paddle.to_tensor(rng.standard_normal((16, 3, 16, 16)).astype("f4"))
        labels = paddle.to_tensor(rng.integers(0, 5, 16))
        for _ in range(12):
            with rounding(BF16, "O1", native=is_native):
                logits = net(x)
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            rule.step()
            rule.clear_grad()
        losses.append(float(loss))
    assert losses[1] < 1.0
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_another_processor_emulates(monkeypatch):
    monkeypatch.setenv(CPU_VARIABLE, "amd-avx2")
    assert "no bf16 instructions" in bf16_products.why_not()


def test_the_library_decides_too(monkeypatch):
    monkeypatch.setenv(CPU_VARIABLE, "intel-amx")
    monkeypatch.setattr(onednn_objects, "multiplies_bf16", lambda: False)
    assert bf16_products.why_not() is not None
