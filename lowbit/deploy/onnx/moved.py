"""Rounding once more to the same grid, or moving values another way, where engines need it: none changes.

Rounding to a grid commutes with a reshape or a maximum: both orders give the same values. Engines run such an
operator in integers if it stands between DequantizeLinear and QuantizeLinear, so these are put on both sides.
"""

from __future__ import annotations

import numpy as np

from lowbit.deploy.onnx.graph import PRODUCTS, Graph, Node

_MOVES = (
    "MaxPool",
    "GlobalMaxPool",
    "Reshape",
    "Flatten",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Pad",
)


def quantize_moved(graph: Graph) -> None:
    """Put QuantizeLinear and DequantizeLinear, in place, on the other side of what moves integers."""
    for node in [node for node in graph.nodes if node.kind == "QuantizeLinear"]:
        _before(node, graph)
    for node in list(graph.nodes):
        if node.kind == "DequantizeLinear":
            _behind(node, graph)
    unread = [node for node in graph.nodes if node.kind == "DequantizeLinear" and _is_unread(node, graph)]
    graph.nodes = [node for node in graph.nodes if not any(node is other for other in unread)]


def round_before_sums(graph: Graph) -> None:
    """Round the output of a product twice, in place, where nothing but a sum reads it.

    OpenVINO merges a product, the rounding of its output, the sum behind it and the rounding of that into one
    operator, and leaves out the first rounding, unless another operator stands before it. Of two roundings it
    keeps the second. ONNX Runtime and lowbit's runtime take two equal ones for one.
    """
    for node in [node for node in graph.nodes if node.kind == "DequantizeLinear"]:
        readers = graph.consumers(node.outputs[0])
        if len(readers) != 1 or readers[0].kind != "Add" or node.outputs[0] in graph.outputs:
            continue
        rounding = graph.producer(node.inputs[0])
        if rounding is None or rounding.kind != "QuantizeLinear":
            continue
        product = graph.producer(rounding.inputs[0])
        if product is not None and product.kind in PRODUCTS:
            _insert(readers[0], node.outputs[0], _chain(rounding, graph), graph)


def join_tokens(graph: Graph) -> None:
    """Write a Concat along axis 1 of three, in place, as one along axis 2 of four, if it joins several grids.

    OpenVINO (2026.4) takes axis 1 for channels, and carries the zero points of what is joined along it as far
    as the next product of matrices, whose channels are the last axis: it then cannot compile the file. It
    leaves other axes alone. A class token before the others is joined like this.
    """
    for node in [node for node in graph.nodes if node.kind == "Concat"]:
        shape = graph.shapes[node.outputs[0]]
        if node.attributes["axis"] != 1 or len(shape) != 3:
            continue
        if sum(_is_on_grid(name, graph) for name in node.inputs) < 2:
            continue
        axis = graph.constant(np.array([1], np.int64))
        number = next(at for at, other in enumerate(graph.nodes) if other is node)
        wide = []
        for name in node.inputs:
            wide.append(graph.new_name("/unsqueeze"))
            first, *rest = graph.shapes[name]
            graph.shapes[wide[-1]] = [first, 1, *rest]
        joined = graph.new_name("/concat")
        graph.shapes[joined] = [shape[0], 1, *shape[1:]]
        graph.nodes[number : number + 1] = [
            *(Node("Unsqueeze", [name, axis], [new]) for name, new in zip(node.inputs, wide, strict=True)),
            Node("Concat", wide, [joined], {"axis": 2}, node.layer),
            Node("Squeeze", [joined, axis], node.outputs),
        ]


def _is_on_grid(name: str, graph: Graph) -> bool:
    node = graph.producer(name)
    while node is not None and (node.kind in _MOVES or node.kind == "Split"):
        node = graph.producer(node.inputs[0])
    return node is not None and node.kind == "DequantizeLinear"


def _is_unread(node: Node, graph: Graph) -> bool:
    return node.outputs[0] not in graph.outputs and not graph.consumers(node.outputs[0])


def _before(quantize: Node, graph: Graph) -> None:
    """As far up as nothing but moves stands above a rounding, round there, too."""
    node = graph.producer(quantize.inputs[0])
    while node is not None and _moves(node, graph) and len(graph.consumers(node.outputs[0])) == 1:
        source = node.inputs[0]
        above = graph.producer(source)
        if above is None or above.kind == "DequantizeLinear" or len(graph.consumers(source)) != 1:
            return
        _insert(node, source, _chain(quantize, graph), graph)
        node = above


def _behind(dequantize: Node, graph: Graph) -> None:
    """As long as values on a grid are moved only, they are on the same grid behind it."""
    value = dequantize.outputs[0]
    for node in graph.consumers(value):
        if node.kind == "Shape":  # integers have the same
            node.inputs[0] = dequantize.inputs[0]
        if node.kind == "Concat":
            if not _zeros_as_integers(node, dequantize, graph):
                continue
        elif not _moves(node, graph) or node.inputs[0] != value or len(node.outputs) != 1:
            continue
        moved = node.outputs[0]
        readers = graph.consumers(moved)
        if not readers or any(reader.kind == "QuantizeLinear" for reader in readers):
            continue
        chain = [Node("QuantizeLinear", ["", *dequantize.inputs[1:]], [""])]
        chain.append(Node("DequantizeLinear", ["", *dequantize.inputs[1:]], [""]))
        _behind(_insert(readers[0], moved, chain, graph), graph)


def _zeros_as_integers(concat: Node, dequantize: Node, graph: Graph) -> bool:
    """If a tensor on a grid is joined with zeros alone, put these on the same grid; whether that is so."""
    others = [name for name in dict.fromkeys(concat.inputs) if name != dequantize.outputs[0]]
    makers = {name: graph.producer(name) for name in others}
    expanded = {name: node for name, node in makers.items() if node is not None and node.kind == "Expand"}
    sources = [node.inputs[0] if (node := expanded.get(name)) else name for name in others]
    zeros = [graph.constants.get(name) for name in sources]
    if not all(isinstance(value, np.ndarray) and not value.any() for value in zeros):
        return False
    zero_point = graph.constants[dequantize.inputs[2]]
    for name, value in zip(others, zeros, strict=True):
        integers = graph.constant(np.full(value.shape, zero_point))
        place = next(i for i, other in enumerate(graph.nodes) if other is concat)
        if name in expanded:
            wide = graph.new_name("/expand")
            graph.shapes[wide] = graph.shapes[name]
            graph.nodes.insert(place, Node("Expand", [integers, expanded[name].inputs[1]], [wide]))
            integers, place = wide, place + 1
        made = graph.new_name("/dequantizelinear")
        graph.shapes[made] = graph.shapes[name]
        graph.nodes.insert(place, Node("DequantizeLinear", [integers, *dequantize.inputs[1:]], [made]))
        concat.inputs = [made if one == name else one for one in concat.inputs]
        if name in expanded and not graph.consumers(name):
            graph.nodes = [node for node in graph.nodes if node is not expanded[name]]
    return True


def _chain(quantize: Node, graph: Graph) -> list[Node]:
    """QuantizeLinear, a Clip of its integers if there is one, DequantizeLinear."""
    chain = [quantize]
    while chain[-1].kind != "DequantizeLinear":
        chain.append(graph.consumers(chain[-1].outputs[0])[0])
    return chain


def _insert(before: Node, tensor: str, chain: list[Node], graph: Graph) -> Node:
    """A copy of the chain in front of a node; everyone who read the tensor reads what it gives."""
    readers = graph.consumers(tensor)
    place = next(i for i, other in enumerate(graph.nodes) if other is before)
    value, made = tensor, []
    for node in chain:
        output = graph.new_name(f"/{node.kind.lower()}")
        graph.shapes[output] = graph.shapes[tensor]
        made.append(Node(node.kind, [value, *node.inputs[1:]], [output], dict(node.attributes)))
        value = output
    for reader in readers:
        reader.inputs = [value if name == tensor else name for name in reader.inputs]
    graph.nodes[place:place] = made
    return made[-1]


def _moves(node: Node, graph: Graph) -> bool:
    if node.kind == "Pad":  # zeros are on every grid
        filling = (
            graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
        )
        return node.attributes.get("mode", "constant") != "constant" or (
            isinstance(filling, np.ndarray) and not filling.any()
        )
    return node.kind in _MOVES


# What keeps OpenVINO 2026.4 from moving scales and zero points, which it does wrongly in some places.


_NOTHING = np.finfo(np.float32).tiny  # what is added to change nothing; 0 would be left out
_CONVOLUTIONS = {"Conv", "ConvTranspose"}
# A positive factor may be before or behind them.
_SCALED = {"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
_REDUCTIONS = {"ReduceMean", "ReduceSum"}
_OTHER_PLACES = {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split"}
_ON_THE_WAY = _SCALED | _OTHER_PLACES | {"QuantizeLinear", "DequantizeLinear", "Clip", "Add"}


def keep_scales_in_place(node: Node, graph: Graph) -> bool:
    """Give a convolution without bias, whose output becomes tokens, one that changes no sum; whether it did.

    OpenVINO 2026.4 moves the scales of its channels behind the transposition otherwise, to the wrong axis.
    """
    has_bias = len(node.inputs) > 2 and bool(graph.constants[node.inputs[2]].any())
    if node.kind not in _CONVOLUTIONS or has_bias or not _becomes_tokens(node.outputs[0], graph):
        return False
    channels = graph.shapes[node.outputs[0]][1]
    node.inputs[2:] = [graph.constant(np.full([channels], _NOTHING), f"{node.layer}.no_bias")]
    return True


def _becomes_tokens(tensor: str, graph: Graph) -> bool:
    """Whether values are moved to other axes, perhaps behind operators that a positive scale goes through."""
    consumers = graph.consumers(tensor)
    return any(consumer.kind in _OTHER_PLACES for consumer in consumers) or any(
        _becomes_tokens(consumer.outputs[0], graph) for consumer in consumers if consumer.kind in _SCALED
    )


def becomes_joined_tokens(tensor: str, graph: Graph) -> bool:
    """Whether channels become another axis, and are joined with other values there: not channel by channel.

    For these OpenVINO 2026.4 gives the scale of a convolution's first channel to all of its channels if it
    has a bias, but not if that is added behind it.
    """
    for consumer in graph.consumers(tensor):
        if consumer.kind == "Concat":
            if len(graph.shapes[consumer.outputs[0]]) == 3 or consumer.attributes["axis"] != 1:
                return True
        elif consumer.kind in _ON_THE_WAY and any(
            becomes_joined_tokens(after, graph) for after in consumer.outputs
        ):
            return True
    return False


def reduce_in_floats(graph: Graph) -> None:
    """Put an operator that changes nothing, in place, before means and sums of values on a grid.

    OpenVINO 2026.4 computes these in integers otherwise, and rounds and clips the results, where no rounding
    is next.
    """
    for node in [node for node in graph.nodes if node.kind in _REDUCTIONS]:
        source = graph.producer(node.inputs[0])
        readers = graph.consumers(node.outputs[0])
        if source is None or source.kind != "DequantizeLinear":
            continue
        if any(reader.kind != "QuantizeLinear" for reader in readers) or node.outputs[0] in graph.outputs:
            before, graph.nodes = graph.nodes, []
            node.inputs[0] = unmoved(node.inputs[0], graph)
            place = next(i for i, other in enumerate(before) if other is node)
            graph.nodes = [*before[:place], *graph.nodes, *before[place:]]


def unmoved(tensor: str, graph: Graph) -> str:
    """The tensor behind an operator that changes nothing.

    OpenVINO 2026.4 moves its rounding to before a concatenation otherwise, with scales and zero points of
    other axes. It does not look behind this operator.
    """
    lowest = graph.constant(np.finfo(np.float32).min, "lowest")
    return graph.add("Max", [tensor, lowest], shape=graph.shapes[tensor])


def is_joined(tensor: str, graph: Graph) -> bool:
    """Whether the tensor comes from a concatenation, moved or not."""
    node = graph.producer(tensor)
    while node is not None and node.kind in _OTHER_PLACES:
        node = graph.producer(node.inputs[0])
    return node is not None and node.kind == "Concat"
