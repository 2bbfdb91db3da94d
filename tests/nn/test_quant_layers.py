"""Quantized layers compute what Paddle's own do on quantized operands, however they are configured."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import is_quantized, quantize_layer
from lowbit.numerics import fake_quantize, parse_grid, parse_observer
from lowbit.recipe import Forward, Plan, TensorSpec
from tests.support.quant_layers import CONVS, TRANSPOSED

W4A4 = Plan(
    forward=Forward(input=TensorSpec(grid="int4"), weight=TensorSpec(grid="int4-narrow", granularity="N"))
)


def _random(shape, seed=0):
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def _on_grid(x, word, axes):
    grid = parse_grid(word)
    return fake_quantize(x.detach(), parse_observer("minmax")(x, grid, axes), grid)


def _expected(layer, x, weight_axes, **kwargs):
    """Paddle's own layer with the quantized weight in the weight's place."""
    twin = copy.deepcopy(layer)
    twin.weight.set_value(_on_grid(layer.weight, "int4-narrow", weight_axes))
    return twin(_on_grid(x, "int4", tuple(range(x.ndim))), **kwargs)


def _in_floats(layer):
    """Quantized, with a product that rounds as Paddle's own does."""
    quantize_layer(layer, W4A4).executor = "simulate"
    return layer


@pytest.mark.parametrize("options", CONVS)
def test_conv(options):
    layer = nn.Conv2D(4, 8, **options)
    shape = [2, 9, 9, 4] if options.get("data_format") == "NHWC" else [2, 4, 9, 9]
    x = _random(shape)
    expected = _expected(layer, x, (1, 2, 3))
    np.testing.assert_array_equal(_in_floats(layer)(x).numpy(), expected.numpy())


@pytest.mark.parametrize("options", TRANSPOSED)
def test_transposed_conv(options):
    layer = nn.Conv2DTranspose(4, 6, **options)
    shape = [2, 5, 5, 4] if options.get("data_format") == "NHWC" else [2, 4, 5, 5]
    x = _random(shape)
    expected = _expected(layer, x, (0, 2, 3))
    np.testing.assert_array_equal(_in_floats(layer)(x).numpy(), expected.numpy())


def test_transposed_conv_with_an_output_size():
    layer = nn.Conv2DTranspose(4, 6, 3, stride=2)
    x = _random([1, 4, 5, 5])
    expected = _expected(layer, x, (0, 2, 3), output_size=[12, 12])
    np.testing.assert_array_equal(_in_floats(layer)(x, output_size=[12, 12]).numpy(), expected.numpy())


@pytest.mark.parametrize("shape", [[3, 4], [2, 3, 4]])
def test_linear(shape):
    layer = nn.Linear(4, 5)
    x = _random(shape)
    expected = _expected(layer, x, (0,))
    np.testing.assert_array_equal(_in_floats(layer)(x).numpy(), expected.numpy())


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("scaling", ["dynamic", "moving_average", "learned"])
def test_bits_are_honoured_per_channel(bits, scaling):
    spec = TensorSpec(grid=f"int{bits}", granularity="N", scaling=scaling)
    layer = quantize_layer(nn.Conv2D(8, 3, 5), Plan(forward=Forward(weight=spec)))
    layer(_random([1, 8, 5, 5]))
    weight = layer.weight_quantizer(layer.weight).numpy()
    counts = [len(np.unique(channel)) for channel in weight]
    assert max(counts) <= 2**bits
    if scaling == "dynamic" and bits < 7:  # 200 values do not fill more
        assert max(counts) > 2 ** (bits - 1)


def test_gradients_go_straight_through():
    layer = quantize_layer(nn.Linear(4, 3), W4A4)
    x = _random([2, 4])
    x.stop_gradient = False
    layer(x).sum().backward()
    weight, x_on_grid = layer.weight_quantizer(layer.weight), layer.input_quantizer(x)
    np.testing.assert_allclose(x.grad.numpy(), np.tile(weight.numpy().sum(1), (2, 1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        layer.weight.grad.numpy(), np.tile(x_on_grid.numpy().sum(0)[:, None], (1, 3)), rtol=1e-5, atol=1e-6
    )
    assert layer.bias.grad is not None


def test_parameters_keep_names_and_identity():
    layer = nn.Conv2D(2, 2, 3)
    weight, saved = layer.weight, copy.deepcopy(layer).state_dict()
    quantize_layer(layer, W4A4)
    assert layer.weight is weight and is_quantized(layer) and isinstance(layer, nn.Conv2D)
    missing, unexpected = layer.set_state_dict(saved)
    assert not missing and not unexpected  # dynamic specs keep nothing


def test_hooks_and_a_subclass_without_a_forward_stay():
    class Mine(nn.Conv2D):
        def flops(self):
            return 7

    calls = []
    layer = Mine(2, 2, 1)
    layer.register_forward_post_hook(lambda layer, inputs, output: calls.append(output))
    layer = copy.deepcopy(quantize_layer(layer, W4A4))
    layer(_random([1, 2, 2, 2]))
    assert len(calls) == 1 and layer.flops() == 7 and isinstance(layer, Mine)


def test_bad_input():
    with pytest.raises(LowbitError, match=r'"act" is a ReLU.*Conv2D, Conv2DTranspose, Linear'):
        quantize_layer(nn.ReLU(), W4A4, name="act")
    layer = quantize_layer(nn.Linear(2, 2), W4A4, name="head")
    with pytest.raises(LowbitError, match=r'"head" is quantized already'):
        quantize_layer(layer, W4A4, name="head")
