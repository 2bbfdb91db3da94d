"""Where a layer's integers are in an ONNX file of lowbit's, and which layers they were made by."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import numpy_helper

from lowbit.deploy.engines.onnx_file import find_onnx_file
from lowbit.errors import LowbitError


class OnnxGraph:
    """The graph of an exported file, asked by the names of the model's layers.

    graph = OnnxGraph("runs/digits/export/inference.onnx")
    graph.inputs["layer1.0.conv2"]          # the tensor of integers that this layer takes
    graph.makers("layer1.0.conv2.input")    # ["layer1.0.conv1"]

    The file says itself, in its metadata, which tensors are its layers'.
    """

    def __init__(self, path: str | Path) -> None:
        model = onnx.load(str(find_onnx_file(path)))
        properties = {one.key: one.value for one in model.metadata_props}
        if "lowbit" not in properties:
            raise LowbitError(f"{path} does not say where its layers are: it was not exported by lowbit")
        described = json.loads(properties["lowbit"])
        calls = described["layers"]
        self.target: str | None = described["target"]
        self.checkpoint: str | None = described.get("checkpoint")  # the SHA-256 of what was exported
        # A layer that is called several times has an entry per call, "conv:1".
        self.inputs = {call: tensors["input"] for call, tensors in calls.items() if "input" in tensors}
        self._layer_of = {tensors["output"]: call.partition(":")[0] for call, tensors in calls.items()}
        self._made_by = {output: node for node in model.graph.node for output in node.output}
        dequantize = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
        self._read_by = {node.input[0]: node for node in dequantize}
        self._place = {output: place for place, node in enumerate(model.graph.node) for output in node.output}
        self._constants = {constant.name: constant for constant in model.graph.initializer}

    def zero_point(self, tensor: str) -> int:
        """The integer of this quantized tensor that stands for 0, as where it becomes values."""
        node = self._read_by[tensor]
        if len(node.input) < 3 or not node.input[2]:
            return 0
        return int(numpy_helper.to_array(self._constants[node.input[2]]).reshape(-1)[0])

    def makers(self, tensor: str) -> list[str]:
        """The layers that the tensor is computed by, without another layer in between, the last one first."""
        outputs, waiting, done = set(), [tensor], set()
        while waiting:
            name = waiting.pop()
            if name in done:
                continue
            done.add(name)
            if name in self._layer_of:
                outputs.add(name)
            elif name in self._made_by:
                waiting.extend(self._made_by[name].input)
        latest_first = sorted(outputs, key=self._place.__getitem__, reverse=True)
        return list(dict.fromkeys(self._layer_of[name] for name in latest_first))
