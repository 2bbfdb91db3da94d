from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit import QAT
from lowbit.deploy.onnx.fold import deployed_layers, fold, storage_bounds
from lowbit.deploy.onnx.graph import MARK, Graph, QuantizedConstant
from lowbit.errors import LowbitError
from lowbit.nn import deployed_weight, prepare
from lowbit.recipe import make_recipe
from tests.support.onnx_models import quantized
from tests.support.tiny_net import build_tiny


def batch_norm(graph: Graph, x: str, gain, shift=None) -> str:
    """One whose statistics change nothing but by `gain` and `shift`."""
    gain = np.float32(gain)
    shift = np.zeros_like(gain) if shift is None else np.float32(shift)
    numbers = [gain, shift, np.zeros_like(gain), np.ones_like(gain)]
    inputs = [x, *map(graph.constant, numbers)]
    return graph.add("BatchNormalization", inputs, shape=graph.shapes[x], epsilon=0.0)


def conv_and_norm(weight, gain, shift=None) -> Graph:
    graph = Graph("x", [-1, 1, 4, 4])
    y = graph.add("Conv", ["x", graph.constant(weight)], shape=[-1, len(gain), 4, 4], group=1)
    graph.outputs = [batch_norm(graph, y, gain, shift)]
    return graph


def integers(*numbers, bits=8) -> QuantizedConstant:
    return QuantizedConstant(
        np.int16(numbers).reshape([-1, 1, 1, 1]), np.full([1, 1, 1, 1], 0.5, np.float32), bits, True
    )


def test_in_fp32_the_weights_are_scaled():
    graph = conv_and_norm(np.ones([2, 1, 1, 1], np.float32), [2, -3], [1, 5])
    assert fold(graph) == []
    (node,) = graph.nodes
    assert graph.constants[node.inputs[1]].ravel().tolist() == [2, -3]
    assert graph.constants[node.inputs[2]].tolist() == [1, 5]
    assert graph.outputs[0] == node.outputs[0]


def test_integers_stay_and_the_gain_goes_into_the_scale():
    graph = conv_and_norm(integers(3, -127), [2, -3])
    assert fold(graph) == []
    weight = graph.constants[graph.nodes[0].inputs[1]]
    assert weight.integers.ravel().tolist() == [3, 127]
    assert weight.scale.ravel().tolist() == [1, 1.5]


def test_a_gain_of_zero_leaves_the_bias_alone():
    graph = conv_and_norm(integers(3, 4), [0, 1], [0.7, 0])
    fold(graph)
    weight = graph.constants[graph.nodes[0].inputs[1]]
    assert weight.integers.ravel().tolist() == [0, 4]
    assert 0 < weight.scale.ravel()[0] < 1e-6  # fine enough for a bias on its grid
    assert graph.constants[graph.nodes[0].inputs[2]].tolist() == [np.float32(0.7), 0]


@pytest.mark.parametrize(("lowest", "bits"), [(-128, 8), (-8, 4)])
def test_an_integer_that_cannot_be_negated(lowest, bits):
    graph = conv_and_norm(integers(lowest, 1, bits=bits), [-1, 1])
    (note,) = fold(graph)
    assert f"would make {-lowest} of {lowest}" in note
    assert [node.kind for node in graph.nodes] == ["Conv", "BatchNormalization"]


def test_two_bits_leave_room_to_be_negated():
    assert storage_bounds(2, True) == (-8, 7)
    assert fold(conv_and_norm(integers(-2, 1, bits=2), [-1, 1])) == []


def test_an_output_that_is_used_elsewhere():
    graph = conv_and_norm(np.ones([2, 1, 1, 1], np.float32), [2, 3])
    conv = graph.nodes[0].outputs[0]
    graph.outputs = [graph.add("Add", [graph.outputs[0], conv], shape=[-1, 2, 4, 4])]
    fold(graph)
    assert [node.kind for node in graph.nodes] == ["Conv", "BatchNormalization", "Add"]


def test_a_bias_comes_as_an_addition():
    graph = Graph("x", [-1, 3])
    y = graph.add("MatMul", ["x", graph.constant(np.ones([3, 2], np.float32))], shape=[-1, 2])
    y = graph.add("Add", [y, graph.constant(np.float32([1, 2]))], shape=[-1, 2])
    y = graph.add(MARK, [y], shape=[-1, 2], layer="fc", role="output")
    graph.outputs = [batch_norm(graph, y, [10, 100])]
    fold(graph)
    (node,) = graph.nodes
    assert graph.constants[node.inputs[2]].tolist() == [10, 200]
    assert graph.layer_outputs == {"fc": node.outputs[0]}
    assert node.layer == "fc"


def test_what_is_no_bias_stays_an_addition():
    graph = Graph("x", [-1, 1, 4, 4])
    weight = graph.constant(np.ones([2, 1, 1, 1], np.float32))
    y = graph.add("Conv", ["x", weight], shape=[-1, 2, 4, 4], group=1)
    graph.outputs = [graph.add("Add", [y, graph.constant(np.ones([4, 4], np.float32))], shape=[-1, 2, 4, 4])]
    fold(graph)
    assert [node.kind for node in graph.nodes] == ["Conv", "Add"]


def transposed(groups: int, channels_in: int, channels_out: int, gain) -> Graph:
    weight = np.ones([channels_in, channels_out // groups, 1, 1], np.int16)
    graph = Graph("x", [-1, channels_in, 4, 4])
    constant = graph.constant(QuantizedConstant(weight, np.ones([1, 1, 1, 1], np.float32), 8, True))
    shape = [-1, channels_out, 4, 4]
    y = graph.add("ConvTranspose", ["x", constant], shape=shape, group=groups)
    graph.outputs = [batch_norm(graph, y, gain)]
    return graph


def test_transposed_convolutions_have_their_outputs_on_another_axis():
    graph = transposed(1, 3, 2, [2, 3])
    assert fold(graph) == []
    assert graph.constants[graph.nodes[0].inputs[1]].scale.shape == (1, 2, 1, 1)


def test_groups_of_one_channel():
    graph = transposed(3, 3, 3, [2, 3, 4])
    assert fold(graph) == []
    assert graph.constants[graph.nodes[0].inputs[1]].scale.shape == (3, 1, 1, 1)


def test_groups_with_different_gains_cannot_be_written():
    graph = transposed(2, 4, 4, [2, 3, 4, 5])
    assert "another axis" in fold(graph)[0]


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
    with pytest.raises(LowbitError, match='layer "conv" is chosen in every call'):
        deployed_layers(model)


def test_a_quantizer_of_the_users_own():
    class Own(nn.Layer):
        def forward(self, x):
            return paddle.round(x)

    model = QAT(config={}, act_quantize=Own).quantize(build_tiny())
    with pytest.raises(LowbitError, match="your own class"):
        deployed_layers(model)
    assert isinstance(deployed_layers(model, quantized=False)["conv"].weight, np.ndarray)
