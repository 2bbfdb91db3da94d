"""What only OpenVINO's engine has; what it shares with ONNX Runtime's is in test_onnx_engines.py."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lowbit.deploy import OpenVinoEngine


def test_floats_stay_floats_also_where_the_processor_multiplies_bf16(tmp_path):
    """Fails on processors with AMX when OpenVINO chooses by itself: bf16 has 8 bits for 1 + 2**-12."""
    weight = numpy_helper.from_array(np.full((1, 1, 1, 1), 1 + 2**-12, np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"]),
        helper.make_node("Flatten", ["y"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "floats",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 2, 2])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 4])],
        [weight],
    )
    file = tmp_path / "floats.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(file))
    answer = OpenVinoEngine(file).run(np.ones((3, 1, 2, 2), np.float32))
    assert np.array_equal(answer, np.full((3, 4), 1 + 2**-12, np.float32))
