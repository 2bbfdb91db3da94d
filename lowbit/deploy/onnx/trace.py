"""From a model to a graph: tracing a program with layer names, and reading it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.static import InputSpec

from lowbit.accel.open_batch import open_batch
from lowbit.deploy.export import untranslatable
from lowbit.deploy.onnx.converters import Op, Result, find_converter
from lowbit.deploy.onnx.graph import MARK, Graph
from lowbit.errors import LowbitError
from lowbit.nn import edge_name, edge_quantizers, eval_mode, is_quantized
from lowbit.nn.activation_matmul import SIDES, QuantizedMatmul
from lowbit.nn.edge_trace import concrete_program

PRODUCT_LAYERS = (nn.Conv2D, nn.Conv2DTranspose, nn.Linear)
_PREFIX = "lowbit"
_ROLES = ("input", "weight", "output", "edge")


def trace(model: nn.Layer, specs: Sequence[InputSpec], model_name: str) -> Any:
    """The program (paddle.jit's ConcreteProgram) of the model in evaluation, for inputs like these.

    Quantized layers give their plain product between marks, which `read_mark` knows; other convolutions and
    Linear layers have a mark behind their output. The model comes back as it was, also after an error.
    """
    with eval_mode(model), open_batch(), _marked(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle's own, about its own code
        try:
            return concrete_program(model, specs)
        except LowbitError:
            raise
        except Exception as error:  # Paddle translates the user's Python; whatever it meets there comes out
            raise untranslatable(error, model, model_name) from error


def read_mark(message: str) -> tuple[str, str] | None:
    """The layer and the role of a mark; None for a print of the user's own.

    Roles are a layer's "input", "weight" and "output", and "edge": a tensor between layers on a grid.

    >>> read_mark("lowbit|input|layer1.0.conv1")
    ('layer1.0.conv1', 'input')
    """
    prefix, _, rest = message.partition("|")
    role, _, layer = rest.partition("|")
    return (layer, role) if prefix == _PREFIX and role in _ROLES else None


def called_layers(program: Any) -> set[str]:
    """The names of the convolutions and Linear layers that the program of a `trace` runs through."""
    marks = [
        read_mark(operation.attrs()["message"])
        for operation in program.main_program.global_block().ops
        if operation.name() == "pd_op.print"
    ]
    return {mark[0] for mark in marks if mark is not None}


def layer_names(model: nn.Layer) -> dict[str, nn.Layer]:
    """The model's convolutions and Linear layers; one that it uses in two places has its first name."""
    layers = dict(model.named_sublayers(include_self=True))
    return {name or "model": layer for name, layer in layers.items() if isinstance(layer, PRODUCT_LAYERS)}


@contextmanager
def _marked(model: nn.Layer) -> Iterator[None]:
    with ExitStack() as undo:
        for name, layer in layer_names(model).items():
            if is_quantized(layer):
                # Past nn.Layer's own bookkeeping, so that nothing of it stays.
                object.__setattr__(layer, "forward", _marked_forward(layer, name))
                undo.callback(object.__delattr__, layer, "forward")
            hook = layer.register_forward_post_hook(
                lambda _layer, _inputs, output, name=name: _mark(output, name, "output")
            )
            undo.callback(hook.remove)
        for name, layer in model.named_sublayers():
            if isinstance(layer, QuantizedMatmul):
                object.__setattr__(layer, "forward", _marked_product(name))
                undo.callback(object.__delattr__, layer, "forward")
        for at, quantizer in edge_quantizers(model).items():
            object.__setattr__(quantizer, "forward", _marked_edge(edge_name(*at)))
            undo.callback(object.__delattr__, quantizer, "forward")
        yield


def _marked_edge(name: str) -> Callable[[Tensor], Tensor]:
    @paddle.jit.not_to_static
    def forward(x: Tensor) -> Tensor:
        return _mark(x, name, "edge")

    return forward


def _marked_forward(layer: nn.Layer, name: str) -> Callable[..., Tensor]:
    @paddle.jit.not_to_static
    def forward(x: Tensor, *geometry: Any) -> Tensor:
        # The weight's values and the bias come from the layer itself, not from the program.
        return layer.product(_mark(x, name, "input"), _mark(layer.weight, name, "weight"), None, *geometry)

    return forward


def _marked_product(name: str) -> Callable[..., Tensor]:
    @paddle.jit.not_to_static
    def forward(x: Tensor, y: Tensor) -> Tensor:
        left, right = (_mark(one, f"{name}.{side}", "input") for one, side in zip((x, y), SIDES, strict=True))
        return paddle.matmul(left, right)

    return forward


def _mark(x: Any, layer: str, role: str) -> Any:
    """The same tensor behind an operator that changes nothing and carries a message; it never runs."""
    is_value = isinstance(x, paddle.pir.Value)
    return paddle.static.Print(x, message=f"{_PREFIX}|{role}|{layer}") if is_value else x


# From Paddle's program to a Graph, operator by operator.


def read_program(program: Any) -> Graph:
    """The network of a `trace`: marks are nodes of kind MARK with `layer` and `role`."""
    parameters = {tensor.name: tensor for tensor in program.parameters[0]}
    operations = program.main_program.global_block().ops
    graph = _with_inputs([operation for operation in operations if operation.name() == "pd_op.data"])
    results: dict[str, Result] = {}  # by the id of a value
    for operation in operations:
        values = operation.results()
        if operation.name() == "builtin.split" and operation.operands_source()[0].id not in results:
            continue  # a list that only the gradient needs, as einsum has
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
            outputs = [_read_mark(op, graph)]
        else:
            found = find_converter(op)(op, graph)
            outputs = list(found) if isinstance(found, tuple) else [found]
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
    inputs: list[Any] = []
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
    shapes = [list(value.shape) if _is_tensor(value) else [] for value in operation.results()]
    first = next(iter(operation.results()), None)
    kind = _type(first) if first is not None and _is_tensor(first) else "float32"
    return Op(operation.name(), attributes, inputs, shapes, kind)


def _read_mark(op: Op, graph: Graph) -> str:
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


def _is_tensor(value: Any) -> bool:
    return value.initialized() and value.is_dense_tensor_type()


def _type(value: Any) -> str:
    return str(value.dtype).rpartition(".")[2].lower()
