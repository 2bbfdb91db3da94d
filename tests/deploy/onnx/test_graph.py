from __future__ import annotations

import numpy as np

from lowbit.deploy.onnx.graph import BatchSize, Graph, QuantizedConstant


def test_what_is_constant_is_computed_at_once():
    graph = Graph("x", [-1, 2])
    name = graph.add("Add", [graph.constant(np.float32([1, 2])), graph.constant(np.float32(3))], shape=[2])
    assert graph.constants[name].tolist() == [4, 5]
    assert graph.nodes == []


def test_sizes_that_are_known_become_a_constant():
    graph = Graph("x", [-1, 2])
    sizes = np.array([BatchSize(), 2], object)
    assert graph.known(graph.add_sizes("Shape", ["x"], sizes)).tolist() == [BatchSize(), 2]
    name = graph.add_sizes("Shape", ["x"], np.array([3, 2], object))
    assert graph.constants[name].dtype == np.int64


def test_a_tensor_renamed_and_a_node_taken_out():
    graph = Graph("x", [-1, 2])
    first = graph.add("Relu", ["x"], shape=[-1, 2])
    second = graph.add("Abs", [first], shape=[-1, 2])
    graph.outputs = [second]
    graph.layer_outputs["layer"] = first
    assert graph.rename(first, "layer") == "layer"
    assert graph.layer_outputs == {"layer": "layer"}
    assert graph.consumers("layer") == [graph.producer(second)]
    graph.remove(graph.producer(second), instead="layer")
    assert graph.outputs[0] == "layer"


def test_a_name_that_is_taken_gets_a_number():
    graph = Graph("x", [])
    assert [graph.new_name("x"), graph.new_name("x")] == ["x:2", "x:3"]


def test_values_of_integers():
    constant = QuantizedConstant(np.int16([[1, -2]]), np.float32([[0.5, 2]]), 4, True)
    assert constant.values().tolist() == [[0.5, -4]]
