"""A small quantized network with a shortcut, and its QDQ file written by hand from the deployed integers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import paddle
from onnx import TensorProto, helper, numpy_helper
from paddle import nn

from lowbit.deploy import EngineOptions
from lowbit.nn import calibrate, deployed_input, deployed_weight, prepare
from lowbit.recipe import make_recipe

SHAPE = (3, 8, 8)
LAYERS = ["stem", "left", "right", "last"]


class SmallNet(nn.Layer):
    """stem; then left and right side by side, added; then last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2D(3, 8, 3, padding=1)
        self.left = nn.Conv2D(8, 8, 3, padding=1)
        self.right = nn.Conv2D(8, 8, 1)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        x = nn.functional.relu(self.stem(x))
        x = nn.functional.relu(self.left(x) + self.right(x))
        return self.last(x.mean([2, 3]))


def images(count: int = 16, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, *SHAPE), dtype=np.float32)


def small_net(bits: int = 7) -> nn.Layer:
    """Calibrated; with 7-bit weights no engine's sums overflow, on whatever processor."""
    paddle.seed(0)
    recipe = {"weight_bits": bits, "activation_bits": 8}
    model = prepare(SmallNet(), make_recipe(recipe))
    some = paddle.to_tensor(images(32, seed=7))
    calibrate(model, [some])
    model.eval()
    with paddle.no_grad():  # else one class wins whatever the image
        model.last.bias.set_value(model.last.bias - model(some).mean(0))
    return model


def write_qdq(
    model: nn.Layer, path: Path, change: Callable[[str, dict[str, np.ndarray]], None] = lambda *_: None
) -> Path:
    """The file; `change(layer, constants)` may alter a layer's constants before they are written."""
    constants: dict[str, np.ndarray] = {}
    nodes = []

    def layer(name: str, source: str, kind: str, **geometry) -> None:
        own = getattr(model, name)
        bounds = deployed_input(own)
        integers, weight = deployed_weight(own)
        axis = 1 if kind == "MatMul" else 0
        here = {
            "x_scale": bounds.scale,
            "x_zero": np.array(128 if bounds.signed else 0, np.uint8),
            "weight": integers.astype(np.int8),
            "weight_scale": np.broadcast_to(weight.scale.reshape(-1), [integers.shape[axis]]).copy(),
            "bias": own.bias.numpy(),
        }
        change(name, here)
        constants.update({f"{name}.{key}": value for key, value in here.items()})
        at = [f"{name}.x_scale", f"{name}.x_zero"]
        nodes.extend(
            [
                helper.make_node("QuantizeLinear", [source, *at], [f"{name}.input"]),
                helper.make_node("DequantizeLinear", [f"{name}.input", *at], [f"{name}.x"]),
                helper.make_node(
                    "DequantizeLinear", [f"{name}.weight", f"{name}.weight_scale"], [f"{name}.w"], axis=axis
                ),
            ]
        )
        if kind == "Conv":
            inputs = [f"{name}.x", f"{name}.w", f"{name}.bias"]
            nodes.append(helper.make_node("Conv", inputs, [name], **geometry))
        else:
            nodes.append(helper.make_node("MatMul", [f"{name}.x", f"{name}.w"], [f"{name}.product"]))
            nodes.append(helper.make_node("Add", [f"{name}.product", f"{name}.bias"], ["logits"]))

    layer("stem", "x", "Conv", pads=[1] * 4)
    nodes.append(helper.make_node("Relu", ["stem"], ["stem_relu"]))
    layer("left", "stem_relu", "Conv", pads=[1] * 4)
    layer("right", "stem_relu", "Conv")
    nodes.append(helper.make_node("Add", ["left", "right"], ["sum"]))
    nodes.append(helper.make_node("Relu", ["sum"], ["sum_relu"]))
    constants["axes"] = np.array([2, 3])
    nodes.append(helper.make_node("ReduceMean", ["sum_relu", "axes"], ["mean"], keepdims=0))
    layer("last", "mean", "MatMul")
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *SHAPE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    tensors = {name: {"input": f"{name}.input", "output": name} for name in LAYERS}
    tensors["last"]["output"] = "logits"
    helper.set_model_props(made, {"lowbit": json.dumps({"layers": tensors, "target": "vnni", "form": ""})})
    onnx.checker.check_model(made, full_check=True)
    onnx.save(made, str(path))
    return path


class ProgressBar:
    def __init__(self):
        self.log = []

    def begin(self, title, total):
        self.log.append([title, total, 0])

    def advance(self):
        self.log[-1][2] += 1


class Answering:
    """An engine that is a function."""

    name, options, image_shape = "function 1.0", EngineOptions(device="cpu", threads=1), SHAPE

    def __init__(self, run):
        self.run = run
