"""From Paddle's program to a Graph: operators one by one, through the converter of each."""

from __future__ import annotations

from typing import Any

import paddle

from lowbit.deploy.onnx.converters import Op, Result, find_converter
from lowbit.deploy.onnx.graph import MARK, Graph
from lowbit.deploy.onnx.trace import read_mark
from lowbit.errors import LowbitError


def read_program(program: Any) -> Graph:
    """The network of a `trace`: marks are nodes of kind MARK with `layer` and `role`."""
    parameters = {tensor.name: tensor for tensor in program.parameters[0]}
    operations = program.main_program.global_block().ops
    graph = _with_inputs([operation for operation in operations if operation.name() == "pd_op.data"])
    results: dict[str, Result] = {}  # by the id of a value
    for operation in operations:
        values = operation.results()
        op = _read(operation, results)
        if op.name == "pd_op.data":
            outputs = [op.attributes["name"]]
        elif op.name == "builtin.parameter":
            name = op.attributes["parameter_name"]
            outputs = [graph.constant(parameters[name].numpy(), name)]
        elif op.name == "builtin.combine":
            outputs = [list(op.inputs)]
        elif op.name == "builtin.split":
            outputs = op.inputs[0]
        elif op.name == "pd_op.print":
            outputs = [_mark(op, graph)]
        else:
            outputs = [find_converter(op)(op, graph)]
        results |= {value.id: output for value, output in zip(values, outputs, strict=False)}
    graph.outputs = _outputs(program.outputs, results, graph)
    return graph


def _with_inputs(data: list[Any]) -> Graph:
    graph = Graph(data[0].attrs()["name"], data[0].results()[0].shape)
    for operation in data[1:]:
        graph.add_input(operation.attrs()["name"], operation.results()[0].shape)
    graph.types |= {operation.attrs()["name"]: _type(operation.results()[0]) for operation in data}
    return graph


def _read(operation: Any, results: dict[str, Result]) -> Op:
    inputs = []
    for value in operation.operands_source():
        if not value.initialized():  # an optional one
            inputs.append(None)
        elif value.id in results:
            inputs.append(results[value.id])
        else:
            raise LowbitError(
                f"{operation.name()} uses a result of another operator that has no ONNX form (such as the "
                "indices of a pooling layer); replace it in the model"
            )
    attributes = {
        key: value.name.lower() if isinstance(value, paddle.base.core.DataType) else value
        for key, value in operation.attrs().items()
    }
    shapes = [
        list(value.shape) if value.initialized() and value.is_dense_tensor_type() else []
        for value in operation.results()
    ]
    return Op(operation.name(), attributes, inputs, shapes)


def _mark(op: Op, graph: Graph) -> str:
    found = read_mark(op.attributes["message"])
    if found is None:  # a print in the user's own forward
        return op.inputs[0]
    layer, role = found
    if role == "weight":  # a constant, but one whose value is not the program's
        name = graph.new_name(f"{layer}.weight")
        graph.shapes[name] = op.shape
        graph.weights_of[name] = layer
        return name
    return graph.add(MARK, [op.inputs[0]], shape=op.shape, layer=layer, role=role)


def _outputs(outputs: list[Any], results: dict[str, Result], graph: Graph) -> list[str]:
    """The tensors that forward returns, those inside of lists and dicts too; one name for each."""
    names = []
    for value in paddle.utils.flatten(outputs):
        if value.id not in results:
            raise LowbitError("forward returns a tensor that has no ONNX form: leave it out")
        name = results[value.id]
        if name in names or name in graph.inputs or name in graph.constants:
            name = graph.add("Identity", [name], shape=graph.shapes[name])
        graph.types[name] = _type(value)
        names.append(name)
    return names


def _type(value: Any) -> str:
    return str(value.dtype).rpartition(".")[2].lower()
