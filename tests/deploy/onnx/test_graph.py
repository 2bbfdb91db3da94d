from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import onnx
import pytest

from lowbit.deploy.onnx.graph import BatchSize, Graph, Node, QuantizedConstant, to_onnx
from lowbit.errors import LowbitError


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


def opset(model: onnx.ModelProto) -> int:
    return model.opset_import[0].version


def simple(kind: str, *inputs: str, **attributes) -> Graph:
    graph = Graph("x", [-1, 3])
    graph.outputs = [graph.add(kind, ["x", *inputs], shape=[-1, 3], **attributes)]
    return graph


def test_the_oldest_version_that_will_do():
    assert opset(to_onnx(simple("Relu"), "net", {})) == 13
    assert opset(to_onnx(simple("HardSwish"), "net", {})) == 14
    assert to_onnx(simple("Relu"), "net", {}).ir_version == 7


def with_four_bits() -> Graph:
    graph = Graph("x", [-1, 3])
    parts = [np.zeros([3, 3], ml_dtypes.int4), np.float32(1), ml_dtypes.int4(0)]
    names = [graph.constant(part) for part in parts]
    graph.nodes.append(Node("DequantizeLinear", names, ["w"]))
    graph.outputs = [graph.add("MatMul", ["x", "w"], shape=[-1, 3])]
    return graph


def test_four_bits_need_opset_21():
    model = to_onnx(with_four_bits(), "net", {})
    assert (opset(model), model.ir_version) == (21, 10)
    stored = next(t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT4 and t.dims)
    assert len(stored.raw_data) == 5  # 9 numbers, two to a byte


def test_axes_are_an_input_in_later_versions():
    graph = with_four_bits()
    graph.outputs = [graph.add("ReduceMean", [graph.outputs[0]], shape=[-1, 1], axes=[1], keepdims=1)]
    node = next(n for n in to_onnx(graph, "net", {}).graph.node if n.op_type == "ReduceMean")
    assert len(node.input) == 2


def test_a_description_goes_with_it():
    (entry,) = to_onnx(simple("Relu"), "net", {"target": "vnni"}).metadata_props
    assert (entry.key, json.loads(entry.value)) == ("lowbit", {"target": "vnni"})


def test_constants_that_nobody_uses_are_left_out():
    graph = simple("Relu")
    graph.constant(np.zeros(100))
    assert not to_onnx(graph, "net", {}).graph.initializer


@pytest.mark.parametrize(("rank", "kinds"), [(2, ["Gemm"]), (3, ["MatMul", "Add"])])
def test_a_product_with_a_bias(rank, kinds):
    graph = Graph("x", [-1, 3] if rank == 2 else [-1, 5, 3])
    weight, bias = (graph.constant(np.ones(shape, np.float32)) for shape in ([3, 2], [2]))
    graph.outputs = [graph.add("MatMul", ["x", weight, bias], shape=[*graph.shapes["x"][:-1], 2])]
    assert [node.op_type for node in to_onnx(graph, "net", {}).graph.node] == kinds


def test_what_the_checker_refuses():
    with pytest.raises(LowbitError, match="makes an ONNX file that does not hold"):
        to_onnx(simple("NoSuchOperator"), "net", {})


def test_nodes_that_nothing_needs_are_left_out():
    graph = simple("Relu")
    graph.add_sizes("Shape", ["x"], np.array([BatchSize(), 3], object))
    assert [node.op_type for node in to_onnx(graph, "net", {}).graph.node] == ["Relu"]
