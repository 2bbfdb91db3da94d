"""The tensors between layers that `outputs: quantized` puts on grids, and the modules they belong to.

Engines run an operator in integers where all of its operands and its result are quantized. So with `outputs:
quantized` every tensor between the first and the last quantized layer has exactly one quantizer:

- a tensor that one quantized layer reads, and nobody else, has that layer's input quantizer, as always;
- any other (read by a sum, a pool, an activation, or by several layers) gets a quantizer at the module whose
  output it is, or at the module that takes it as its input. Layers that read it share this quantizer.

`find_edges` traces the model once (`edge_trace.py`). A tensor of no module is reported and stays in floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from paddle import Tensor, nn

from lowbit.nn.edge_trace import Node, trace_nodes

Place = Literal["output", "input"]
_PRODUCTS = ("conv2d", "depthwise_conv2d", "conv2d_transpose", "depthwise_conv2d_transpose", "matmul")
# Done while the sums of the operator before them are rounded: nothing is rounded in between.
_CLIPPED = ("relu", "relu6", "clip", "hardtanh")


@dataclass(frozen=True)
class Edge:
    """A tensor with a quantizer of its own: read by several operators, or by one that is no quantized layer.

    `owner` is the module that it belongs to. `readers` are the quantized layers that read it, `spec_of` the
    layer whose input spec it follows: the first of the readers, or the next one behind.
    """

    owner: str
    place: Place  # whether it is the owner's output or its input
    readers: tuple[str, ...]
    spec_of: str


@dataclass(frozen=True)
class RoundedOperator:
    """An operator whose result is rounded to a grid: a layer, a sum of two tensors, a mean over pixels.

    Quantizers are named by their module and place. A layer's source is its own input quantizer.
    """

    kind: Literal["layer", "sum", "mean"]
    sources: tuple[tuple[str, Place], ...]
    target: tuple[str, Place]
    layer: str = ""
    batch_norm: str = ""
    count: int = 1  # of the pixels of a mean


@dataclass(frozen=True)
class Edges:
    """The edges of a model, and those without a module, in words."""

    found: tuple[Edge, ...] = ()
    without_module: tuple[str, ...] = ()
    batch_norms: tuple[tuple[str, str], ...] = ()  # layers with the batch norm that alone reads their output
    roundings: tuple[RoundedOperator, ...] = ()  # in the order of the network

    def lines(self) -> list[str]:
        """A few lines for people; none where nothing was found."""
        if not self.found and not self.without_module:
            return []
        total = len(self.found) + len(self.without_module)
        lines = [f"{len(self.found)} of {total} tensors between layers are quantized, too"]
        return lines + [f"  in floats, since it is no module's own: {one}" for one in self.without_module]


def find_edges(model: nn.Layer, inputs: Sequence[Tensor], layers: Collection[str]) -> Edges:
    """The edges between these layers (by name), found by a trace of the model for inputs like `inputs`.

    >>> net = nn.Sequential(nn.Conv2D(3, 4, 3), nn.ReLU(), nn.AvgPool2D(2), nn.Conv2D(4, 4, 1))
    >>> find_edges(net, [paddle.ones([1, 3, 8, 8])], ["0", "3"]).found
    (Edge(owner='1', place='output', readers=(), spec_of='3'),)
    """
    kinds = dict(model.named_sublayers())
    nodes = trace_nodes(model, inputs, set(layers))
    return _Graph(nodes, {name for name, layer in kinds.items() if _can_own(layer)}).edges()


def _can_own(layer: nn.Layer) -> bool:
    """Whether a quantizer can be a sublayer of it: containers run all of their sublayers."""
    return not isinstance(layer, nn.Sequential | nn.LayerList | nn.LayerDict | nn.ParameterList)


# The program as a graph of layers, with the producer and the readers of every tensor.


class _Graph:
    def __init__(self, nodes: list[Node], owners: set[str]) -> None:
        self.owners = owners
        self.nodes = nodes
        self.calls = Counter(node.name for node in self.nodes if node.kind == "output")
        self.maker = {value: node for node in self.nodes for value in node.outputs}
        self.users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                self.users.setdefault(value, []).append(node)
        self.behind: set[str] = set()  # values that are computed from a quantized layer's output
        for node in self.nodes:
            if node.kind == "layer" or any(value in self.behind for value in node.inputs):
                self.behind.update(node.outputs)
        self.next_layer: dict[str, str] = {}  # value -> the first quantized layer that depends on it
        for node in reversed(self.nodes):
            first = node.name if node.kind == "layer" else None
            first = first or next((self.next_layer[v] for v in node.outputs if v in self.next_layer), None)
            if first is not None:
                self.next_layer.update(dict.fromkeys(node.inputs, first))

    def edges(self) -> Edges:
        found, without = [], []
        grids: dict[str, tuple[str, Place]] = {}  # value -> its quantizer
        for node in self.nodes:
            if node.kind in ("input", "output") or node.moves:
                continue
            for value in node.outputs:
                readers = self._readers(value)
                if not self._needs_grid(value, readers):
                    continue
                if _is_one_layer(readers):
                    grids[value] = (readers[0].name, "input")
                    continue
                owner = self._owner(value)
                if owner is None:
                    without.append(self._describe(node, readers))
                    continue
                # In training a dropout scales what it keeps: behind one, a layer has a scale of its own.
                sharing = self._readers(value, behind_dropout=False)
                names = tuple(dict.fromkeys(one.name for one in sharing if one.kind == "layer"))
                spec_of = names[0] if names else self.next_layer[value]
                found.append(Edge(owner.name, owner.kind, names, spec_of))
                grids[value] = (owner.name, owner.kind)  # type: ignore[assignment]
        norms = dict(self._batch_norms())
        roundings = tuple(self._roundings(grids, norms))
        return Edges(tuple(found), tuple(without), tuple(norms.items()), roundings)

    def _roundings(
        self, grids: dict[str, tuple[str, Place]], norms: dict[str, str]
    ) -> Iterator[RoundedOperator]:
        for node in self.nodes:
            target = grids.get(self._rounded(node.outputs[0]))
            sources = tuple(grids.get(self._origin(value)) for value in node.inputs)
            if target is None:
                continue
            if node.kind == "layer":
                yield RoundedOperator(
                    "layer", ((node.name, "input"),), target, node.name, norms.get(node.name, "")
                )
            elif None not in sources and node.kind == "add" and len(sources) == 2:
                yield RoundedOperator("sum", sources, target)
            elif None not in sources and node.kind == "pool2d" and node.pixels:
                yield RoundedOperator("mean", sources, target, count=node.pixels)

    def _rounded(self, value: str) -> str:
        """The value that is rounded, behind what belongs to the operator that makes this one."""
        while len(readers := self._readers(value)) == 1 and self._is_part_of_product(readers[0], value):
            value = readers[0].outputs[0]
        return value

    def _origin(self, value: str) -> str:
        """The value before marks and moves."""
        while (node := self.maker.get(value)) and (node.kind in ("input", "output") or node.moves):
            value = node.inputs[0]
        return value

    def _batch_norms(self) -> Iterator[tuple[str, str]]:
        """Quantized layers and the batch norms that are folded into them."""
        for node in self.nodes:
            readers = self._readers(node.outputs[0]) if node.kind == "layer" else []
            if len(readers) != 1 or readers[0].kind != "batch_norm":
                continue
            mark = next(self._alone_behind(readers[0].outputs[0]), None)
            if mark is not None and mark.kind == "output":
                yield node.name, mark.name

    def _needs_grid(self, value: str, readers: list[Node]) -> bool:
        """Whether it lies between quantized layers, and is not clipped or normalized before it is rounded."""
        if value not in self.next_layer or not readers:
            return False
        if len(readers) == 1 and self._is_part_of_product(readers[0], value):
            return False
        together = any(other in self.behind for one in readers for other in one.inputs)
        return value in self.behind or together

    def _is_part_of_product(self, node: Node, value: str) -> bool:
        kind = node.kind
        if kind in _CLIPPED:
            return True
        before = self.maker[value].kind
        is_bias = kind == "add" and len(node.inputs) == 1  # the other operand is a constant
        return before in ("layer", *_PRODUCTS) and (kind == "batch_norm" or is_bias)

    def _readers(self, value: str, *, behind_dropout: bool = True) -> list[Node]:
        """Who computes with it, or with values that were moved only."""
        found: list[Node] = []
        for node in self.users.get(value, []):
            if node.kind == "dropout" and not behind_dropout:
                continue
            if node.kind in ("input", "output") or node.moves:
                for moved in node.outputs:
                    readers = self._readers(moved, behind_dropout=behind_dropout)
                    found += [one for one in readers if one not in found]
            elif node not in found:
                found.append(node)
        return found

    def _owner(self, value: str) -> Node | None:
        """The mark of the module that it is the output of, or else the input of, for all who read it."""
        outputs: list[Node] = []  # best first: the innermost module behind the last operator that moves
        inputs: list[Node] = []
        for node in self._alone_behind(value):
            if node.moves:
                outputs, inputs = [], []
            elif node.name in self.owners and self.calls[node.name] == 1:
                (outputs if node.kind == "output" else inputs).append(node)
        if not outputs and not inputs:  # before the operators that move
            for node in self._alone_behind(value):
                if node.moves:
                    break
                if node.name in self.owners and self.calls[node.name] == 1 and node.kind == "output":
                    return node
        return outputs[0] if outputs else inputs[-1] if inputs else None

    def _alone_behind(self, value: str) -> Iterator[Node]:
        """The marks and operators that move behind a value, as long as nobody else reads it."""
        while len(users := self.users.get(value, [])) == 1:
            (node,) = users
            if len(node.outputs) != 1 or not (node.kind in ("input", "output") or node.moves):
                return
            yield node
            value = node.outputs[0]

    def _describe(self, node: Node, readers: list[Node]) -> str:
        near = [self._named_before(value) for value in node.inputs]
        what = f'layer "{node.name}"' if node.kind == "layer" else node.kind
        of = f" of {' and '.join(near)}" if any(near) and node.kind != "layer" else ""
        by = ", ".join(dict.fromkeys(one.name or one.kind for one in readers))
        return f"the output of {what}{of}, which {by} read" + "s" * (len(readers) == 1)

    def _named_before(self, value: str) -> str:
        while value in self.maker:
            node = self.maker[value]
            if node.name:
                return node.name
            if not node.inputs:
                break
            value = node.inputs[0]
        return "an input"


def _is_one_layer(readers: list[Node]) -> bool:
    return len(readers) == 1 and readers[0].kind == "layer"
