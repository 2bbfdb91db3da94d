"""The graph between Paddle's program and the ONNX file, and writing it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from lowbit.errors import LowbitError
from lowbit.version import __version__

MARK = "Mark"  # the one kind of node that ONNX does not have: where an operand is quantized
PRODUCTS = ("Conv", "ConvTranspose", "MatMul")
_EVALUATED_IN = 13  # the version of ONNX's operators in which constants are computed


@dataclass(frozen=True)
class QuantizedConstant:
    """A weight as integers; `scale` broadcasts against them."""

    integers: np.ndarray
    scale: np.ndarray
    bits: int
    signed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.integers.shape

    def values(self) -> np.ndarray:
        return self.integers.astype(np.float32) * self.scale


@dataclass(frozen=True)
class BatchSize:
    """A size that is the batch's times a factor, as that of windows that were made part of the batch.

    >>> BatchSize() * 4 // 2
    BatchSize(factor=Fraction(2, 1))
    """

    factor: Fraction = Fraction(1)

    def __mul__(self, other: object) -> BatchSize:
        return BatchSize(self.factor * _whole(other))

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> BatchSize | float:
        if isinstance(other, BatchSize):
            return float(self.factor / other.factor)
        return BatchSize(self.factor / _whole(other))

    def __floordiv__(self, other: object) -> BatchSize | float:
        found = self / other
        if isinstance(found, BatchSize) and found.factor.denominator != 1:
            raise ValueError("depends on the batch's size in a way that is not a multiple of it")
        return found


def _whole(number: object) -> int:
    if not isinstance(number, int | float) or number != int(number) or not number:
        raise ValueError("not a whole number")
    return int(number)


@dataclass
class Node:
    """One operator, in ONNX's words; "" stands for an input that is left out.

    A product (PRODUCTS) has the inputs x, weight and, where there is one, bias: also a MatMul.
    """

    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    layer: str = ""  # the model's layer whose product this is


class Graph:
    """Nodes in the order in which they are computed.

    >>> graph = Graph("x", [-1, 4])
    >>> graph.outputs = [graph.add("Relu", ["x"], shape=[-1, 4])]
    >>> [node.kind for node in graph.nodes]
    ['Relu']
    """

    def __init__(self, input_: str, shape: Sequence[int]) -> None:
        self.inputs, self.outputs = [input_], [""]
        self.types: dict[str, str] = {}  # of inputs and outputs that are not float32
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray | QuantizedConstant] = {}
        # What is known of numbers that are computed from shapes: integers, multiples of the batch's size, or
        # None where nothing is. Each is also a tensor of the graph.
        self.partial: dict[str, np.ndarray] = {}
        # Of tensors with one size of -1: which multiple of the batch's size it is, if not the batch's itself.
        self.multiples: dict[str, Fraction] = {}
        self.shapes: dict[str, list[int]] = {input_: list(shape)}
        self.weights_of: dict[str, str] = {}  # weights whose values come from the model's layer of that name
        self.layer_outputs: dict[str, str] = {}  # the tensor that a layer gives; see `fold`
        self._taken = {input_}

    def add_input(self, name: str, shape: Sequence[int]) -> None:
        """One more input; the first is there from the start."""
        self.inputs.append(name)
        self.shapes[name] = list(shape)
        self._taken.add(name)

    def new_name(self, hint: str) -> str:
        """A name that no tensor has yet; those of our own begin with "/", which no layer's does."""
        name, count = hint, 1
        while name in self._taken:
            count += 1
            name = f"{hint}:{count}"
        self._taken.add(name)
        return name

    def constant(self, value: Any, hint: str = "/constant") -> str:
        """The name under which nodes use this array."""
        if not isinstance(value, QuantizedConstant):
            value = np.asarray(value)
        name = self.new_name(hint)
        self.constants[name] = value
        self.shapes[name] = list(value.shape)
        return name

    def add(
        self,
        kind: str,
        inputs: Sequence[str],
        *,
        shape: Sequence[int],
        outputs: int = 1,
        **attributes: Any,
    ) -> str:
        """A node at the end; returns its (first) output. Of constant inputs alone it is computed at once."""
        given = [self.constants.get(name) for name in inputs if name]
        if given and outputs == 1 and all(isinstance(value, np.ndarray) for value in given):
            return self.constant(self._compute(kind, inputs, attributes))
        names = [self.new_name(f"/{kind.lower()}") for _ in range(outputs)]
        self.nodes.append(Node(kind, list(inputs), names, attributes))
        shape = known_shape(kind, [self.shapes.get(name, []) for name in inputs], attributes, shape)
        given = [self.multiples.get(name) for name in inputs if -1 in self.shapes.get(name, ())]
        for name in names:
            self.shapes[name] = list(shape)
            if given and given[0] is not None:
                self.multiples[name] = given[0]
        return names[0]

    def add_sizes(self, kind: str, inputs: Sequence[str], value: np.ndarray, **attributes: Any) -> str:
        """A node that computes with sizes; `value` is what is known of its result (see `partial`).

        Where all sizes are known it is a constant like any other.
        """
        value = np.asarray(value)
        if value.dtype != object or all(isinstance(size, int | np.integer) for size in value.flat):
            return self.constant(value.astype(np.int64))
        name = self.add(kind, [self.as_int64(name) for name in inputs], shape=value.shape, **attributes)
        self.partial[name] = value
        return name

    def as_int64(self, name: str) -> str:
        """A constant of integers of another type as int64, in which sizes are computed."""
        value = self.constants.get(name)
        if isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.dtype != np.int64:
            return self.constant(value.astype(np.int64))
        return name

    def known(self, name: str) -> np.ndarray | None:
        """The value of a tensor that depends on no image, or on their number only (see `partial`)."""
        return self.partial[name] if name in self.partial else self.constants.get(name)

    def consumers(self, name: str) -> list[Node]:
        return [node for node in self.nodes if name in node.inputs]

    def producer(self, name: str) -> Node | None:
        return next((node for node in self.nodes if name in node.outputs), None)

    def remove(self, node: Node, *, instead: str) -> None:
        """Take a node out; who used its output uses `instead`."""
        self.nodes = [other for other in self.nodes if other is not node]
        self.replace(node.outputs[0], instead)

    def drop_unused(self) -> None:
        """Take out the nodes that no output needs, such as those of sizes that turned out to be known."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        self.nodes = kept[::-1]

    def replace(self, old: str, new: str) -> None:
        """Replace the tensor `old` by `new` in all nodes that read it."""
        for node in self.nodes:
            node.inputs = [new if name == old else name for name in node.inputs]
        self.outputs = [new if name == old else name for name in self.outputs]

    def rename(self, old: str, new: str) -> str:
        """Call a computed tensor `new`, or the like if that name is taken; returns the name it has now."""
        new = self.new_name(new)
        for node in self.nodes:
            node.outputs = [new if name == old else name for name in node.outputs]
        self.replace(old, new)
        self.shapes[new] = self.shapes.pop(old)
        if old in self.multiples:
            self.multiples[new] = self.multiples.pop(old)
        if old in self.types:
            self.types[new] = self.types.pop(old)
        self.layer_outputs = {
            layer: new if name == old else name for layer, name in self.layer_outputs.items()
        }
        return new

    def _compute(self, kind: str, inputs: Sequence[str], attributes: dict[str, Any]) -> np.ndarray:
        present = {name: self.constants[name] for name in inputs if name}
        infos = [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in present.items()
        ]
        node = onnx.helper.make_node(kind, list(inputs), ["y"], **attributes)
        graph = onnx.helper.make_graph([node], kind, infos, [onnx.ValueInfoProto(name="y")])
        model = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", max(_EVALUATED_IN, OPSET_OF.get(kind, 0)))]
        )
        return np.asarray(ReferenceEvaluator(model).run(None, present)[0])


_LIKE_FIRST = {
    "Relu", "Sigmoid", "Tanh", "Abs", "Exp", "Log", "Sqrt", "Floor", "Ceil", "Erf", "Neg", "Clip", "Cast",
    "HardSwish", "HardSigmoid", "LeakyRelu", "Reciprocal", "Softmax", "LayerNormalization",
    "BatchNormalization",
}  # fmt: skip
_BROADCAST = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"}


def known_shape(
    kind: str, inputs: list[list[int]], attributes: dict[str, Any], shape: Sequence[int]
) -> list[int]:
    """A node's shape, with sizes from its inputs in the place of a -1.

    Paddle forgets sizes behind a reshape by the batch's size.

    >>> known_shape("Transpose", [[-1, 4, 9]], {"perm": [0, 2, 1]}, [-1, -1, -1])
    [-1, 9, 4]
    """
    shape = list(shape)
    if -1 not in shape:
        return shape
    own: list[int] = []
    if kind in _LIKE_FIRST:
        own = inputs[0]
    elif kind == "Transpose":
        own = [inputs[0][axis] for axis in attributes["perm"]]
    elif kind == "MatMul" and len(inputs[0]) > 1 and len(inputs[1]) > 1:
        own = [*_broadcast([one[:-2] for one in inputs[:2]]), inputs[0][-2], inputs[1][-1]]
    elif kind in _BROADCAST:
        own = _broadcast(inputs)
    if len(own) != len(shape):
        return shape
    return [known if size == -1 else size for size, known in zip(shape, own, strict=True)]


def _broadcast(shapes: list[list[int]]) -> list[int]:
    rank = max(map(len, shapes))
    wide = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [_common(sizes) for sizes in zip(*wide, strict=True)]


def _common(sizes: Sequence[int]) -> int:
    known = [size for size in sizes if size not in (-1, 1)]
    return known[0] if known else (-1 if -1 in sizes else 1)


# Operators that came after opset 13, and with which they came.
OPSET_OF = {"HardSwish": 14, "LayerNormalization": 17, "Mish": 18}


# Writing a Graph as an ONNX model, in the oldest opset that has all its operators.


_OLDEST = 13  # DequantizeLinear with a scale per channel
_WITH_4_BITS = 21
_AXES_AS_INPUT = 18  # of ReduceMean, ReduceMax and ReduceMin
_4_BITS = (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4))


def to_onnx(graph: Graph, name: str, description: dict[str, Any]) -> onnx.ModelProto:
    """The model, checked; `description` becomes its metadata under the key "lowbit", as JSON."""
    graph.drop_unused()
    nodes = _plain_nodes(graph)
    used = {name for node in nodes for name in node.inputs}
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
    words = ["batch", *(f"{name}.{axis}" for axis in range(1, len(graph.shapes[name])))]
    if name in graph.inputs and len(words) == 4:
        words[2:] = ["height", "width"]
    shape = [word if size == -1 else size for word, size in zip(words, graph.shapes[name], strict=True)]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(graph.types.get(name, "float32")))
    return helper.make_tensor_value_info(name, kind, shape)
