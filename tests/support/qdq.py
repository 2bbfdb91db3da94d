"""Small ONNX graphs with QuantizeLinear and DequantizeLinear, made operator by operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class QdqGraph:
    """Nodes are added in order; methods return the names of their outputs.

    graph = QdqGraph([1, 3, 8, 8], seed=0)
    x = graph.values("x", 0.05, 128)
    y = graph.conv(x, 16, 3, pads=[1, 1, 1, 1])
    graph.save(path, [graph.values(y, 0.1, 0)])
    """

    def __init__(self, shape: list[int | str], seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape = shape
        self.channels = {"x": shape[1]}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]

    def constant(self, value: np.ndarray, kind: int | None = None) -> str:
        """An initializer; `kind` for types that NumPy lacks."""
        name = f"c{len(self.constants)}"
        if kind is None:
            self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        else:
            self.constants.append(helper.make_tensor(name, kind, np.shape(value), np.ravel(value)))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=f"{kind}_{name}", **attributes))
        self.channels[name] = self.channels.get(inputs[0], 0)
        return name

    def integers(
        self, x: str, scale: float, zero: int = 0, kind: type = np.uint8, clip: tuple[int, int] | None = None
    ) -> str:
        """QuantizeLinear, and a Clip of the integers."""
        made = self.add("QuantizeLinear", x, self.constant(np.float32(scale)), self.constant(kind(zero)))
        if clip is not None:
            made = self.add("Clip", made, *(self.constant(kind(bound)) for bound in clip))
        return made

    def values(self, x: str, scale: float, zero: int = 0, kind: type = np.uint8, clip: Any = None) -> str:
        """The same, with DequantizeLinear behind it."""
        made = self.integers(x, scale, zero, kind, clip)
        return self.add("DequantizeLinear", made, self.constant(np.float32(scale)), self.constant(kind(zero)))

    def weight(self, shape: list[int], bits: int, axis: int, *, unsigned: bool = False) -> str:
        """A constant weight on a grid of so many bits with a scale per output channel."""
        highest = 2 ** (bits - 1) - 1
        integers = self.rng.integers(-highest - (bits < 8), highest + 1, shape)
        scale = self.rng.uniform(0.5, 2, shape[axis]).astype(np.float32) / (highest * 4)
        if bits <= 4:
            parts = [self.constant(integers, TensorProto.INT4), self.constant(scale)]
            parts.append(self.constant(np.zeros(shape[axis], int), TensorProto.INT4))
        else:
            kind, zero = (np.uint8, 128) if unsigned else (np.int8, 0)
            parts = [self.constant((integers + zero).astype(kind)), self.constant(scale)]
            parts.append(self.constant(np.full(shape[axis], zero, kind)))
        return self.add("DequantizeLinear", *parts, axis=axis)

    def conv(
        self,
        x: str,
        outputs: int,
        kernel: int,
        *,
        bits: int = 8,
        bias: bool = True,
        unsigned: bool = False,
        **more: Any,
    ) -> str:
        inputs = self.channels[x] // more.get("group", 1)
        parts = [x, self.weight([outputs, inputs, kernel, kernel], bits, 0, unsigned=unsigned)]
        if bias:
            parts.append(self.constant(self.rng.standard_normal(outputs).astype(np.float32) / 4))
        y = self.add("Conv", *parts, **more)
        self.channels[y] = outputs
        return y

    def linear(self, x: str, outputs: int, *, bits: int = 8, bias: bool = True) -> str:
        y = self.add("MatMul", x, self.weight([self.channels[x], outputs], bits, 1))
        if bias:
            y = self.add("Add", y, self.constant(self.rng.standard_normal(outputs).astype(np.float32) / 4))
        self.channels[y] = outputs
        return y

    def save(self, path: Path, outputs: list[str]) -> Path:
        made = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "test", self.inputs, made, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        path.write_bytes(model.SerializeToString())
        return path

    def images(self, batch: int = 1, scale: float = 1.0) -> np.ndarray:
        shape = [batch, *self.shape[1:]]
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)


def mixed_network(path: Path, *, bits: int = 7, batch: int | str = "N") -> QdqGraph:
    """A residual block, squeeze and excitation, concatenation, pools, a linear layer; all edges quantized."""
    graph = QdqGraph([batch, 3, 20, 17], seed=bits)
    clip = (0, 15) if bits <= 4 else None
    steps = 16 if bits <= 4 else 1
    x = graph.values("x", 0.02 * steps, 8 if bits <= 4 else 128, clip=clip)
    a = graph.conv(x, 24, 3, strides=[2, 2], pads=[1, 1, 1, 1], bits=bits)
    a = graph.values(graph.add("Relu", a), 0.02 * steps, clip=clip)
    b = graph.conv(a, 24, 3, group=24, pads=[1, 1, 1, 1], bits=bits)
    b = graph.add("Clip", b, graph.constant(np.float32(0)), graph.constant(np.float32(6)))
    b = graph.values(b, 0.023 * steps, clip=clip)
    c = graph.values(
        graph.conv(b, 24, 1, bits=bits, bias=False), 0.03 * steps, 8 if bits <= 4 else 120, clip=clip
    )
    c = graph.values(graph.add("Relu", graph.add("Add", c, a)), 0.025 * steps, clip=clip)
    s = graph.values(graph.add("GlobalAveragePool", c), 0.01 * steps, clip=clip)
    s = graph.values(graph.add("Relu", graph.conv(s, 6, 1, bits=bits)), 0.01 * steps, clip=clip)
    s = graph.values(graph.conv(s, 24, 1, bits=bits), 0.02 * steps, 8 if bits <= 4 else 128, clip=clip)
    s = graph.values(graph.add("HardSigmoid", s, alpha=1 / 6), 0.004 * steps, clip=clip)
    d = graph.values(graph.add("Mul", c, s), 0.02 * steps, clip=clip)
    e = graph.values(
        graph.conv(d, 40, 5, group=8, dilations=[2, 1], pads=[4, 2, 4, 2], bits=bits),
        0.05 * steps,
        8 if bits <= 4 else 100,
        clip=clip,
    )
    e = graph.values(graph.add("HardSwish", e), 0.04 * steps, 2, clip=clip)
    f = graph.add("Concat", d, e, axis=1)
    graph.channels[f] = 64
    f = graph.values(f, 0.04 * steps, 2, clip=clip)
    g = graph.values(
        graph.add("MaxPool", f, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        0.05 * steps,
        2,
        clip=clip,
    )
    h = graph.add(
        "AveragePool", g, kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1], count_include_pad=1
    )
    h = graph.values(h, 0.03 * steps, clip=clip)
    p = graph.values(graph.add("GlobalAveragePool", h), 0.02 * steps, clip=clip)
    p = graph.add("Reshape", p, graph.constant(np.array([-1, 64])))
    p = graph.values(p, 0.02 * steps, clip=clip)
    graph.channels[p] = 64
    graph.save(path, [graph.linear(p, 10, bits=bits)])
    return graph
