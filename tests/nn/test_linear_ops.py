"""Each layer's three products are those that Paddle's autograd derives; scales come out of the sums."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from lowbit.accel import onednn_objects
from lowbit.kernels.fp32_winograd import winograd
from lowbit.kernels.gemm import INTEGER_SCALES
from lowbit.nn.float_gradients import in_floats
from lowbit.nn.linear_ops import (
    ByAutograd,
    ChannelsLast,
    Convolution,
    LinearOp,
    Matrix,
    Transposed,
    channels_first,
    channels_last,
    geometry_of,
    transposed_geometry,
)
from tests.support.gemm_cases import square

PRODUCTS = ("forward", "grad_input", "grad_weight")


def integers(*shape: int, seed: int) -> paddle.Tensor:
    """Whole numbers: sums of them are exact, in whatever order."""
    return paddle.to_tensor(np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32))


def convolution(**settings) -> tuple[LinearOp, nn.Layer, tuple[int, ...]]:
    layer = nn.Conv2D(4, 6, 3, **settings)
    return Convolution(geometry_of(layer, [2, 4, 7, 8])), layer, (2, 4, 7, 8)


def transposed(**settings) -> tuple[LinearOp, nn.Layer, tuple[int, ...]]:
    layer = nn.Conv2DTranspose(4, 6, 3, **settings)
    return Transposed(Convolution(transposed_geometry(layer, [2, 4, 5, 6], None))), layer, (2, 4, 5, 6)


def linear(*shape: int) -> tuple[LinearOp, nn.Layer, tuple[int, ...]]:
    return Matrix(), nn.Linear(shape[-1], 3), shape


CASES = {
    "conv": lambda: convolution(padding=1),
    "conv, stride and dilation": lambda: convolution(stride=2, dilation=2, padding=[1, 2]),
    "conv, groups": lambda: convolution(groups=2, padding="SAME"),
    "conv, four paddings": lambda: convolution(padding=[0, 1, 2, 1]),
    "transposed": lambda: transposed(stride=2, padding=1),
    "transposed, groups": lambda: transposed(groups=2, output_padding=0),
    "linear": lambda: linear(5, 7),
    "linear of tokens": lambda: linear(2, 5, 7),
}


def expected(layer: nn.Layer, x: paddle.Tensor, weight: paddle.Tensor, seed: int) -> list[paddle.Tensor]:
    """What Paddle computes: Y, dY, dX, dW."""
    x, weight = x.detach(), weight.detach()
    x.stop_gradient = weight.stop_gradient = False
    if isinstance(layer, nn.Linear):
        y = F.linear(x, weight)
    elif isinstance(layer, nn.Conv2DTranspose):
        y = F.conv2d_transpose(
            x, weight, stride=layer._stride, padding=layer._padding, groups=layer._groups,
            dilation=layer._dilation,
        )  # fmt: skip
    else:
        y = F.conv2d(
            x, weight, stride=layer._stride, padding=layer._padding, groups=layer._groups,
            dilation=layer._dilation,
        )  # fmt: skip
    dy = integers(*y.shape, seed=seed)
    return [y.detach(), dy, *paddle.grad(y, [x, weight], dy)]


@pytest.mark.parametrize("in_onednn", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_the_products_are_those_of_autograd(name, in_onednn, monkeypatch):
    if not in_onednn:
        monkeypatch.setattr(onednn_objects, "why_missing", lambda: "not for this test")
    op, layer, shape = CASES[name]()
    x, weight = integers(*shape, seed=0), integers(*layer.weight.shape, seed=1)
    y, dy, dx, dw = expected(layer, x, weight, seed=2)
    for ours, theirs in (
        (op.forward(x, weight), y),
        (op.grad_input(dy, weight), dx),
        (op.grad_weight(dy, x), dw),
    ):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_channels_last_is_the_same_in_another_layout():
    inner, layer, shape = convolution(padding=1)
    op, x, weight = ChannelsLast(inner), integers(*shape, seed=0), integers(*layer.weight.shape, seed=1)
    y = inner.forward(x, weight)
    dy = integers(*y.shape, seed=2)
    np.testing.assert_array_equal(op.forward(channels_last(x), weight).numpy(), channels_last(y).numpy())
    dx = op.grad_input(channels_last(dy), weight)
    np.testing.assert_array_equal(channels_first(dx).numpy(), inner.grad_input(dy, weight).numpy())
    dw = op.grad_weight(channels_last(dy), channels_last(x))
    np.testing.assert_array_equal(dw.numpy(), inner.grad_weight(dy, x).numpy())


def test_any_product_can_be_derived():
    inner, layer, shape = convolution(padding=1)
    op = ByAutograd(inner.forward, shape, tuple(layer.weight.shape))
    by_paddle = ByAutograd(lambda x, w: F.conv2d(x, w, padding=1), shape, tuple(layer.weight.shape))
    x, weight = integers(*shape, seed=0), integers(*layer.weight.shape, seed=1)
    dy = integers(2, 6, 7, 8, seed=2)
    np.testing.assert_array_equal(op.forward(x, weight).numpy(), by_paddle.forward(x, weight).numpy())
    np.testing.assert_array_equal(
        by_paddle.grad_input(dy, weight).numpy(), inner.grad_input(dy, weight).numpy()
    )
    np.testing.assert_array_equal(by_paddle.grad_weight(dy, x).numpy(), inner.grad_weight(dy, x).numpy())
    assert by_paddle.forward_scale(x, weight) is None


def scales(shape: list[int], letters: str, *, weight: bool, layer: str) -> paddle.Tensor:
    """Powers of two, one for each index of the axes that the letters name."""
    axes = {"N": 0, "C": 1, "H": 2, "W": 3}
    if layer == "Linear":
        axes = {"N": 1, "C": 0} if weight else {"N": 0, "C": len(shape) - 1}
    elif layer == "Conv2DTranspose" and weight:
        axes = {"N": 1, "C": 0}
    owned = {axes[letter] for letter in letters if letter in axes}
    sizes = [size if axis in owned else 1 for axis, size in enumerate(shape)]
    return 2.0 ** integers(*sizes, seed=7)


@pytest.mark.parametrize("name", ["conv", "conv, groups", "transposed", "linear"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_scales_that_come_out_of_the_sum(name, product):
    """`…_scale` times the product of the integers is the product of the scaled operands."""
    op, layer, shape = CASES[name]()
    x, weight = integers(*shape, seed=0), integers(*layer.weight.shape, seed=1)
    _, dy, _, _ = expected(layer, x, weight, seed=2)
    named = {"input": x, "weight": weight, "grad_output": dy}
    kind = type(layer).__name__
    # The letters that a sum in one piece allows; more are allowed where a sum may be split.
    split = {"forward": "HW" if kind != "Conv2D" else "", "grad_input": "HW", "grad_weight": "N"}[product]
    operands, factors = [], []
    for operand, letters in INTEGER_SCALES[kind][product].items():
        values = named[operand]
        kept = "".join(letter for letter in letters if operand == "weight" or letter not in split)
        operands.append(values)
        factors.append(scales(values.shape, kept, weight=operand == "weight", layer=kind))
    (first, second), (a, b) = operands, factors
    whole = getattr(op, f"{product}_scale")(a, b)
    assert whole is not None
    sums = getattr(op, product)(first, second)
    np.testing.assert_array_equal((sums * whole).numpy(), getattr(op, product)(first * a, second * b).numpy())


@pytest.mark.skipif(winograd(square(16, 16, 8)) is None, reason="no fused multiply-add here")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gradients_in_floats_differ_by_rounding_only(layout):
    random = np.random.default_rng(0)
    exact: LinearOp = Convolution(square(16, 32, 9, batch=3))
    shapes = {"x": [3, 16, 9, 9], "w": [32, 16, 3, 3], "dy": [3, 32, 9, 9]}
    x, weight, dy = (
        paddle.to_tensor(random.standard_normal(shape).astype(np.float32)) for shape in shapes.values()
    )
    if layout == "NHWC":
        exact, x, dy = ChannelsLast(exact), channels_last(x), channels_last(dy)
    floats = in_floats(exact, dy)
    assert floats != exact
    for product, operand in (("grad_input", weight), ("grad_weight", x)):
        found, expected = (getattr(op, product)(dy, operand).numpy() for op in (floats, exact))
        assert 0 < np.abs(found - expected).max() <= 5e-5 * np.abs(expected).max()


def test_other_products_are_exact_in_floats_too():
    dy = paddle.ones([3, 32, 5, 5])
    for exact in (Matrix(), Convolution(square(16, 32, 9, stride=2)), Convolution(square(3, 16, 9))):
        assert in_floats(exact, dy) == exact
