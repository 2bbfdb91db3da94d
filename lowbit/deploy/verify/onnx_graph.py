"""Where a layer's integers are in an ONNX file, and which layers they were made by."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import numpy_helper

from lowbit.deploy.engines.onnx_file import find_onnx_file

_INPUT = ".input"  # layer "conv1" takes the integers "conv1.input"


class OnnxGraph:
    """The graph of an exported file, asked by the names of the model's layers.

    graph = OnnxGraph("runs/digits/export/inference.onnx")
    graph.makers("layer1.0.conv2.input", layers=["conv1", "layer1.0.conv1"])    # ["layer1.0.conv1"]
    """

    def __init__(self, path: str | Path) -> None:
        graph = onnx.load(str(find_onnx_file(path))).graph
        self._made_by = {output: node for node in graph.node for output in node.output}
        self._constants = {constant.name: constant for constant in graph.initializer}

    def zero_point(self, layer: str) -> int | None:
        """The integer that stands for 0 in this layer's input; None where the file does not quantize it."""
        node = self._made_by.get(layer + _INPUT)
        if node is None or node.op_type != "QuantizeLinear":
            return None
        if len(node.input) < 3 or not node.input[2]:
            return 0
        return int(numpy_helper.to_array(self._constants[node.input[2]]).reshape(-1)[0])

    def makers(self, tensor: str, layers: Iterable[str]) -> list[str]:
        """Those of the layers that the tensor is computed by, without another of them in between.

        A way back from the tensor ends where it meets a layer's output (`conv1`) or the integers that only
        this layer takes (`conv1.input`), whichever of the two the file has names for.
        """
        layers = list(layers)
        ends = {name: name for name in layers} | {name + _INPUT: name for name in layers}
        found, done = set(), {tensor}
        waiting = list(self._inputs(tensor))
        while waiting:
            name = waiting.pop()
            if name in done:
                continue
            done.add(name)
            if name in ends:
                found.add(ends[name])
            else:
                waiting.extend(self._inputs(name))
        return [name for name in layers if name in found]

    def _inputs(self, tensor: str) -> Iterable[str]:
        return self._made_by[tensor].input if tensor in self._made_by else ()
