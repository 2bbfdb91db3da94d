"""What can be said of a tensor's values without running the network."""

from __future__ import annotations

import numpy as np

from lowbit.deploy.onnx.graph import Graph, Node

_NEVER_NEGATIVE = {"Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs", "Exp", "Sqrt", "Softplus"}
# They give values of their first input, or means of them.
_OF_FIRST = {
    "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "ReduceMean", "ReduceMax", "ReduceMin",
    "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Expand", "Resize", "DequantizeLinear",
}  # fmt: skip
_OF_ALL = {"Concat", "Max", "Min", "Add", "Mul"}


def never_negative(graph: Graph, tensor: str) -> bool:
    """Whether all values of the tensor are known to be 0 or more, as they are behind a ReLU."""
    return _never_negative(graph, {o: n for n in graph.nodes for o in n.outputs}, tensor)


def _never_negative(graph: Graph, producers: dict[str, Node], tensor: str) -> bool:
    if tensor in graph.constants:
        constant = graph.constants[tensor]
        return isinstance(constant, np.ndarray) and bool((constant >= 0).all())
    node = producers.get(tensor)
    if node is None:
        return False
    if node.kind in _NEVER_NEGATIVE:
        return True
    if node.kind in _OF_FIRST:
        # Integers that are never negative come from values that are not, after rounding and clipping to 0.
        return _never_negative(graph, producers, node.inputs[0])
    if node.kind == "QuantizeLinear":
        return _never_negative(graph, producers, node.inputs[0]) or (
            graph.constants[node.inputs[2]].dtype == np.uint8 and not graph.constants[node.inputs[2]].any()
        )
    if node.kind == "Clip":
        lowest = graph.constants.get(node.inputs[1])
        clipped = lowest is not None and bool(lowest >= 0)
        return clipped or _never_negative(graph, producers, node.inputs[0])
    if node.kind == "Pad":
        filled = node.attributes.get("mode", "constant") != "constant" or len(node.inputs) < 3
        return _never_negative(graph, producers, node.inputs[0]) and (
            filled or bool(graph.constants[node.inputs[2]] >= 0)
        )
    return node.kind in _OF_ALL and all(_never_negative(graph, producers, name) for name in node.inputs)
