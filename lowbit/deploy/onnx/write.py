"""A Graph as an ONNX model, in the oldest version of ONNX that has what it uses."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from lowbit.deploy.onnx.graph import OPSET_OF, Graph, Node
from lowbit.errors import LowbitError
from lowbit.version import __version__

_OLDEST = 13  # DequantizeLinear with a scale per channel
_WITH_4_BITS = 21
_AXES_AS_INPUT = 18  # of ReduceMean, ReduceMax and ReduceMin
_4_BITS = (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4))


def to_onnx(graph: Graph, name: str, description: dict[str, Any]) -> onnx.ModelProto:
    """The model, checked; `description` becomes its metadata under the key "lowbit", as JSON."""
    nodes = _plain_nodes(graph)
    used = {name for node in nodes for name in node.inputs}
    for name_ in used & graph.partial.keys():
        raise LowbitError(
            f"the size of a batch is used as a number ({name_}), which an ONNX file of lowbit cannot do"
        )
    constants = {key: value for key, value in graph.constants.items() if key in used}
    opset = max([_OLDEST, *(OPSET_OF.get(node.kind, 0) for node in nodes)])
    if any(value.dtype in _4_BITS for value in constants.values()):
        opset = max(opset, _WITH_4_BITS)
    nodes, more = _in_opset(nodes, opset)
    proto = helper.make_graph(
        [helper.make_node(node.kind, node.inputs, node.outputs, **node.attributes) for node in nodes],
        name,
        [_value(name, graph) for name in graph.inputs],
        [_value(name, graph) for name in graph.outputs],
        [numpy_helper.from_array(value, key) for key, value in (constants | more).items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(
        proto,
        opset_imports=opsets,
        ir_version=helper.find_min_ir_version_for(opsets),
        producer_name="lowbit",
        producer_version=__version__,
    )
    helper.set_model_props(model, {"lowbit": json.dumps(description, sort_keys=True)})
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # its own kinds, and those of shape inference
        raise LowbitError(f"{name} makes an ONNX file that does not hold: {error}") from error
    return model


def _plain_nodes(graph: Graph) -> list[Node]:
    """Products of matrices with a bias as ONNX has them: Gemm for two axes, else MatMul and Add."""
    nodes = []
    for node in graph.nodes:
        if node.kind != "MatMul" or len(node.inputs) == 2:
            nodes.append(node)
        elif len(graph.shapes[node.inputs[0]]) == 2:
            nodes.append(Node("Gemm", node.inputs, node.outputs, node.attributes, node.layer))
        else:
            product = graph.new_name("/product")
            nodes.append(Node("MatMul", node.inputs[:2], [product]))
            nodes.append(Node("Add", [product, node.inputs[2]], node.outputs))
    return nodes


def _in_opset(nodes: list[Node], opset: int) -> tuple[list[Node], dict[str, np.ndarray]]:
    """The same nodes in a version that wants some attributes as inputs, and those inputs."""
    more: dict[str, np.ndarray] = {}
    if opset < _AXES_AS_INPUT:
        return nodes, more
    changed = []
    for node in nodes:
        if "axes" in node.attributes:
            key = f"{node.outputs[0]}.axes"
            more[key] = np.array(node.attributes["axes"], np.int64)
            rest = {name: value for name, value in node.attributes.items() if name != "axes"}
            node = Node(node.kind, [*node.inputs, key], node.outputs, rest, node.layer)
        changed.append(node)
    return changed, more


def _value(name: str, graph: Graph) -> onnx.ValueInfoProto:
    shape = ["batch" if size == -1 else size for size in graph.shapes[name]]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(graph.types.get(name, "float32")))
    return helper.make_tensor_value_info(name, kind, shape)


