"""A small QDQ network written by hand: two quantized convolutions and a mean over each picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHAPE = (3, 8, 8)


def small_onnx(path: Path, *, any_size: bool = False) -> Path:
    rng = np.random.default_rng(0)

    def weight(inputs: int) -> np.ndarray:
        return rng.integers(-60, 60, (4, inputs, 3, 3)).astype(np.int8)

    constants = {
        "x_scale": np.float32(0.05),
        "x_zero": np.uint8(128),
        # No sum of products lies half way between two integers, which engines may round either way.
        "y_scale": np.float32(0.1037),
        "y_zero": np.uint8(0),
        "first_weight": weight(3),
        "second_weight": weight(4),
        "weight_scale": np.full(4, 0.01, np.float32),
        "weight_zero": np.zeros(4, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["first.input"]),
        helper.make_node("DequantizeLinear", ["first.input", "x_scale", "x_zero"], ["x_back"]),
        helper.make_node("DequantizeLinear", ["first_weight", "weight_scale", "weight_zero"], ["w1"], axis=0),
        helper.make_node("Conv", ["x_back", "w1"], ["first"], pads=[1] * 4),
        helper.make_node("Relu", ["first"], ["y"]),
        helper.make_node("QuantizeLinear", ["y", "y_scale", "y_zero"], ["second.input"]),
        helper.make_node("DequantizeLinear", ["second.input", "y_scale", "y_zero"], ["y_back"]),
        helper.make_node(
            "DequantizeLinear", ["second_weight", "weight_scale", "weight_zero"], ["w2"], axis=0
        ),
        helper.make_node("Conv", ["y_back", "w2"], ["second"], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["second"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["logits"]),
    ]
    images = ["N", 3, "H", "W"] if any_size else ["N", *SHAPE]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, images)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    return path
