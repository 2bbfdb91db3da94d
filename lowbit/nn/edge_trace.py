"""A model as a program, read into nodes: what `find_edges` and `equalize` look at.

The model is traced once, with a mark at the input and the output of every module, so that it is known, not
guessed, which tensor is which module's. A quantized layer is one node.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.static import InputSpec

from lowbit.errors import LowbitError
from lowbit.nn.eval_mode import cause, eval_mode

# They give values of their first input, so that what was on a grid stays on it.
_MOVES = (
    "reshape", "flatten", "transpose", "squeeze", "unsqueeze", "slice", "strided_slice", "split",
    "split_with_num", "max_pool2d_with_index", "dropout", "assign", "share_data", "expand", "tile",
    "nearest_interp", "pixel_shuffle", "channel_shuffle", "flip",
)  # fmt: skip
_WITH_EXTRA_RESULTS = ("batch_norm", "max_pool2d_with_index", "dropout")


@dataclass(eq=False)
class Node:
    """An operator, a quantized layer, or a mark, with the names of the tensors that it reads and makes."""

    kind: str  # an operator's name, or "layer" (quantized), "input" and "output" (marks)
    inputs: list[str]
    outputs: list[str]
    name: str = ""  # of a layer or a module
    moves: bool = False  # whether it gives values of its input and zeros, and no others
    pixels: int = 0  # that a mean over all pixels adds up


def trace_nodes(
    model: nn.Layer, inputs: Sequence[Tensor], layers: set[str], *, purpose: str = "outputs: quantized"
) -> list[Node]:
    """The operators that compute floats from the model's inputs; what is inside of `layers` is one node each.

    `purpose` is the recipe's setting that needs it, for an error if Paddle cannot trace the model.

    trace_nodes(model, [images], {"conv1", "fc"})
    """
    return _read(_trace(model, inputs, purpose), layers)


def concrete_program(model: nn.Layer, specs: Sequence[InputSpec]) -> Any:
    """The model's program for inputs like these, in evaluation mode (paddle.jit's ConcreteProgram).

    concrete_program(model, [InputSpec([1, 3, 32, 32])]).main_program
    """
    # Through a layer of ours: what to_static leaves on its object does not stay on the model.
    traced = _Traced(model)
    return paddle.jit.to_static(traced.forward, input_spec=[list(specs)], full_graph=True).concrete_program


class _Traced(nn.Layer):
    def __init__(self, model: nn.Layer) -> None:
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, inputs: list[Tensor]) -> Any:
        return self.model(*inputs)


def _trace(model: nn.Layer, inputs: Sequence[Tensor], purpose: str) -> Any:
    specs = [InputSpec(given.shape, given.dtype) for given in inputs]
    with eval_mode(model), ExitStack() as undo, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle's own, about its own code
        for name, layer in model.named_sublayers():
            before, after = _marks(name)
            undo.callback(layer.register_forward_pre_hook(before).remove)
            undo.callback(layer.register_forward_post_hook(after).remove)
        try:
            return concrete_program(model, specs)
        except LowbitError:
            raise
        except Exception as error:  # Paddle translates the user's Python; whatever it meets there comes out
            raise LowbitError(
                f"{purpose} needs {type(model).__name__} as a program, like an export, and Paddle cannot "
                f"make one: {cause(error)}. Change its forward, or leave out {purpose}"
            ) from error


def _marks(name: str) -> tuple[Any, Any]:
    def before(_layer: nn.Layer, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_mark(one, f"input|{name}") if n == 0 else one for n, one in enumerate(given))

    def after(_layer: nn.Layer, _given: Any, output: Any) -> Any:
        return _mark(output, f"output|{name}")

    return before, after


def _mark(x: Any, message: str) -> Any:
    """The same tensor behind an operator that changes nothing and carries a message; it never runs."""
    return paddle.static.Print(x, message=f"edge|{message}") if isinstance(x, paddle.pir.Value) else x


def _read(program: Any, layers: set[str]) -> list[Node]:
    """The operators that compute floats from the model's inputs; what is inside a layer is one node."""
    nodes: list[Node] = []
    lists: dict[str, list[str]] = {}  # values that are lists of tensors
    computed: set[str] = set()
    zeros: set[str] = set()
    inside: Node | None = None
    for operation in program.main_program.global_block().ops:
        given = [value.id for value in operation.operands_source() if value.initialized()]
        given = [one for value in given for one in lists.get(value, [value])]
        results = operation.results()
        kind = operation.name().removeprefix("pd_op.").removesuffix("_")  # `relu_` writes into its input
        if kind == "data":
            computed.update(value.id for value in results if _is_float(value))
            continue
        if kind == "builtin.combine":
            lists[results[0].id] = given
            continue
        if kind == "builtin.split":  # the tensors of a list, each with its own name from now on
            node = next(one for one in nodes if given[0] in one.outputs)
            node.outputs = [value.id for value in results]
            computed.update(node.outputs)
            continue
        if kind in ("full", "full_like"):
            if (kind == "full" and not operation.attrs()["value"]) or zeros & set(given):
                zeros.add(results[0].id)
            continue
        used = [value for value in given if value in computed]
        if not used:
            continue
        role, name = _read_mark(kind, operation)
        if inside is not None and (role, name) == ("output", inside.name):
            inside.outputs = [used[0]]
            nodes.append(inside)
            computed.add(used[0])
            inside = None
        if inside is not None:
            computed.update(value.id for value in results)
            continue
        if role == "input" and name in layers:
            inside = Node("layer", used, [], name)
            computed.update(value.id for value in results)
            continue
        made = [value.id for value in results if not value.is_dense_tensor_type() or _is_float(value)]
        if role:
            kind = role
        if made:
            outputs = made[:1] if kind in _WITH_EXTRA_RESULTS else made
            constants = {value for value in given if value not in computed}
            moves = _moves(kind, operation.attrs(), used, constants - zeros)
            pixels = _pixels(kind, operation) if not moves else 0
            nodes.append(Node(kind, used, outputs, name, moves, pixels))
            computed.update(made)
    return nodes


def _pixels(kind: str, operation: Any) -> int:
    """Of how many pixels the result of a pool is the mean, if it gives one for the image; else 0."""
    attributes = operation.attrs()
    if kind != "pool2d" or attributes["data_format"] != "NCHW":
        return 0
    before, after = operation.operands_source()[0].shape[2:], operation.results()[0].shape[2:]
    if math.prod(after) != 1 or min(before) <= 0:
        return 0
    if attributes["adaptive"] or attributes["global_pooling"]:
        return math.prod(before)
    window = _window(operation)
    inside = len(window) == 2 and all(size <= whole for size, whole in zip(window, before, strict=True))
    return math.prod(window) if inside and not any(attributes["paddings"]) else 0


def _window(operation: Any) -> list[int]:
    """The kernel of a pool; nothing where it is computed."""
    maker = operation.operands_source()[1].get_defining_op()
    sizes = maker.attrs().get("value", [])
    return [int(size) for size in sizes] if isinstance(sizes, list | tuple) else []


def _moves(kind: str, attributes: Mapping[str, Any], used: list[str], not_zeros: set[str]) -> bool:
    if kind == "pad":  # its value is an input
        return not not_zeros
    if kind == "pad3d":
        return float(attributes["pad_value"]) == 0.0
    if kind == "concat":  # of one tensor with zeros; the axis is one more constant
        return len(used) == 1 and len(not_zeros) == 1
    return kind in _MOVES or (kind == "pool2d" and attributes["pooling_type"] == "max")


def _read_mark(kind: str, operation: Any) -> tuple[str, str]:
    """The role and the module of a mark; nothing for other operators."""
    message = operation.attrs()["message"] if kind == "print" else ""
    prefix, _, rest = message.partition("|")
    role, _, name = rest.partition("|")
    return (role, name) if prefix == "edge" else ("", "")


def _is_float(value: Any) -> bool:
    return value.is_dense_tensor_type() and "FLOAT" in str(value.dtype).upper()
