"""Integers through operators that only move values: the same grid before and behind them.

Rounding to a grid commutes with a reshape or a maximum: both come to the same values. Engines run such an
operator in integers if it stands between DequantizeLinear and QuantizeLinear, so these are put on either side.
"""

from __future__ import annotations

import numpy as np

from lowbit.deploy.onnx.graph import Graph, Node

_MOVES = ("MaxPool", "GlobalMaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Pad")


def quantize_moved(graph: Graph) -> None:
    """Put QuantizeLinear and DequantizeLinear, in place, on the other side of what moves integers."""
    for node in [node for node in graph.nodes if node.kind == "QuantizeLinear"]:
        _before(node, graph)
    for node in list(graph.nodes):
        if node.kind == "DequantizeLinear":
            _behind(node, graph)


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
        if not _moves(node, graph) or node.inputs[0] != value or len(node.outputs) != 1:
            continue
        moved = node.outputs[0]
        readers = graph.consumers(moved)
        if not readers or any(reader.kind == "QuantizeLinear" for reader in readers):
            continue
        chain = [Node("QuantizeLinear", ["", *dequantize.inputs[1:]], [""])]
        chain.append(Node("DequantizeLinear", ["", *dequantize.inputs[1:]], [""]))
        _behind(_insert(readers[0], moved, chain, graph), graph)


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
        filling = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
        return node.attributes.get("mode", "constant") != "constant" or (
            isinstance(filling, np.ndarray) and not filling.any()
        )
    return node.kind in _MOVES
