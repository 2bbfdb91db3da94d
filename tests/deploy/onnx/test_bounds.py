from __future__ import annotations

import numpy as np
import pytest

from lowbit.deploy.onnx.graph import Graph
from lowbit.deploy.onnx.qdq import never_negative


@pytest.fixture
def graph():
    return Graph("x", [-1, 3, 4, 4])


def add(graph, kind, *inputs, **attributes):
    return graph.add(kind, inputs, shape=[-1, 3, 4, 4], **attributes)


def test_of_the_input_nothing_is_known(graph):
    assert not never_negative(graph, "x")
    assert not never_negative(graph, add(graph, "Conv", "x", graph.constant(np.ones([3, 3, 1, 1]))))


@pytest.mark.parametrize("kind", ["Relu", "Sigmoid", "HardSigmoid", "Softmax"])
def test_activations(graph, kind):
    assert never_negative(graph, add(graph, kind, "x"))


def test_what_keeps_it(graph):
    relu = add(graph, "Relu", "x")
    assert never_negative(graph, add(graph, "MaxPool", add(graph, "Reshape", relu)))
    assert never_negative(graph, add(graph, "Add", relu, graph.constant(np.float32(1))))
    assert never_negative(graph, add(graph, "Concat", relu, relu, axis=1))


def test_what_loses_it(graph):
    relu = add(graph, "Relu", "x")
    assert not never_negative(graph, add(graph, "Add", relu, "x"))
    assert not never_negative(graph, add(graph, "Add", relu, graph.constant(np.float32(-1))))
    assert not never_negative(graph, add(graph, "Sub", relu, relu))
    assert not never_negative(graph, add(graph, "HardSwish", relu))


@pytest.mark.parametrize(("lowest", "expected"), [(0.0, True), (-1.0, False)])
def test_clip(graph, lowest, expected):
    clipped = add(graph, "Clip", "x", graph.constant(np.float32(lowest)), graph.constant(np.float32(6)))
    assert never_negative(graph, clipped) is expected


@pytest.mark.parametrize(("filled", "expected"), [(0.0, True), (-1.0, False)])
def test_pad(graph, filled, expected):
    relu, pads = add(graph, "Relu", "x"), graph.constant(np.zeros(8, np.int64))
    padded = add(graph, "Pad", relu, pads, graph.constant(np.float32(filled)))
    assert never_negative(graph, padded) is expected


@pytest.mark.parametrize(
    ("zero", "expected"), [(np.uint8(0), True), (np.uint8(128), False), (np.int8(0), False)]
)
def test_values_of_integers(graph, zero, expected):
    parts = [graph.constant(np.float32(0.1)), graph.constant(zero)]
    integers = add(graph, "QuantizeLinear", "x", *parts)
    assert never_negative(graph, add(graph, "DequantizeLinear", integers, *parts)) is expected
