from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit import QAT
from lowbit.deploy.onnx.fold import deployed_layers
from lowbit.deploy.onnx.graph import QuantizedConstant
from lowbit.errors import LowbitError
from lowbit.nn import deployed_weight, prepare
from lowbit.recipe import make_recipe
from tests.support.onnx_models import quantized
from tests.support.tiny_net import build_tiny

SHAPE = (3, 16, 16)


def test_the_integers_of_the_layer():
    model = quantized(build_tiny(), SHAPE)
    conv = deployed_layers(model)["conv"]
    integers, operand = deployed_weight(model.conv)
    np.testing.assert_array_equal(conv.weight.integers, integers)
    assert conv.weight.scale.shape == (8, 1, 1, 1)
    np.testing.assert_array_equal(conv.weight.values(), integers * operand.scale)
    assert conv.input.bits == 8
    np.testing.assert_array_equal(conv.bias, model.conv.bias.numpy())


def test_operands_in_full_precision():
    rules = [{"forward": {"input": {"grid": "full"}, "weight": {"grid": "int4", "granularity": "N"}}}]
    layer = deployed_layers(quantized(build_tiny(), SHAPE, rules=rules))["conv"]
    assert layer.input is None
    assert isinstance(layer.weight, QuantizedConstant)


def test_before_any_batch_was_seen():
    model = prepare(build_tiny(), make_recipe({"weight_bits": 8}))
    with pytest.raises(LowbitError, match='layer "conv"'):
        deployed_layers(model)


def test_scales_chosen_in_every_call():
    model = quantized(build_tiny(), SHAPE, activation_quantize_type="abs_max")
    with pytest.raises(LowbitError, match='layer "conv" is chosen anew in every call'):
        deployed_layers(model)


def test_a_quantizer_of_the_users_own():
    class Own(nn.Layer):
        def forward(self, x):
            return paddle.round(x)

    model = QAT(config={}, act_quantize=Own).quantize(build_tiny())
    with pytest.raises(LowbitError, match="a class of your own"):
        deployed_layers(model)
    assert isinstance(deployed_layers(model, quantized=False)["conv"].weight, np.ndarray)
