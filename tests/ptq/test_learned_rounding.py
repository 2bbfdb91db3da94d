"""One pass and plain operators give the same bits, forward and backward."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.kernels import why_missing
from lowbit.kernels.quantization import Draw
from lowbit.numerics import fused as kernel_calls
from lowbit.numerics import parse_grid
from lowbit.ptq.learned_rounding import drop_quantize, hidden, shift_channels

pytestmark = pytest.mark.skipif(why_missing() is not None, reason="needs the C++ kernels")


def _run(function, x: np.ndarray, other: np.ndarray, *, plain: bool, monkeypatch) -> list[np.ndarray]:
    with monkeypatch.context() as patch:
        if plain:
            patch.setattr(kernel_calls, "layout", lambda *_: None)
        a = paddle.to_tensor(x, stop_gradient=False)
        b = paddle.to_tensor(other, stop_gradient=False)
        y = function(a, b)
        (y * paddle.arange(y.size, dtype="float32").reshape(y.shape).cos()).sum().backward()
        return [y.numpy(), a.grad.numpy(), b.grad.numpy()]


@pytest.mark.parametrize("drop", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("grid", "shape"), [("int4", [1]), ("uint4", [1]), ("int8", [5, 1, 1])])
def test_drop_quantize(drop, grid, shape, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.standard_normal([3, 5, 6, 7]).astype(np.float32)
    step = rng.uniform(0.05, 0.2, shape).astype(np.float32)

    def function(a, b):
        return drop_quantize(a, b, parse_grid(grid), drop, Draw(1, 2, 3))

    fast = _run(function, x, step, plain=False, monkeypatch=monkeypatch)
    slow = _run(function, x, step, plain=True, monkeypatch=monkeypatch)
    np.testing.assert_array_equal(fast[0], slow[0])
    np.testing.assert_array_equal(fast[1], slow[1])
    # The twin scales LSQ's gradient by 1 / sqrt(highest); Adam does not depend on it.
    pace = np.sqrt(parse_grid(grid).highest)
    np.testing.assert_allclose(fast[2], slow[2] * pace, rtol=1e-4, atol=1e-3)
    stayed = (fast[0] == x).mean()
    assert abs(stayed - drop) < 0.1


def test_every_draw_leaves_other_values():
    x, step = paddle.randn([1000]), paddle.to_tensor([0.5])
    one, two = (drop_quantize(x, step, parse_grid("int4"), 0.5, Draw(0, turn, 0)).numpy() for turn in (1, 2))
    assert 0.2 < (one != two).mean() < 0.8


@pytest.mark.parametrize(("shape", "axis"), [([2, 3, 4, 5], 1), ([2, 4, 5, 3], -1), ([6, 3], 1)])
def test_shift_channels(shape, axis, monkeypatch):
    rng = np.random.default_rng(0)
    x, shift = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(3).astype(np.float32)

    def function(a, b):
        return shift_channels(a, b, axis)

    fast = _run(function, x, shift, plain=False, monkeypatch=monkeypatch)
    slow = _run(function, x, shift, plain=True, monkeypatch=monkeypatch)
    np.testing.assert_array_equal(fast[0], slow[0])
    np.testing.assert_array_equal(fast[1], slow[1])
    np.testing.assert_allclose(fast[2], slow[2], rtol=1e-5, atol=1e-5)


def test_what_was_hidden_before_is_hidden_again_afterwards():
    layer = nn.Sequential(nn.ReLU())
    inner = layer[0]
    with hidden(layer, "0", "first"):
        with hidden(layer, "0", "second"):
            assert vars(layer)["0"] == "second"
        assert vars(layer)["0"] == "first"
    assert "0" not in vars(layer) and layer[0] is inner
