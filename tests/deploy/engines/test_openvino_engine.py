"""What only OpenVINO's engine has; what it shares with ONNX Runtime's is in test_onnx_engines.py."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lowbit.deploy import OpenVinoEngine
from tests.support.small_onnx import SHAPE, small_onnx


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


def test_some_batch_sizes_have_programs_of_their_own(tmp_path):
    """Answers are the same as the general program's, whose turn it is for the sizes after these."""
    file = small_onnx(tmp_path / "inference.onnx")
    images = np.random.default_rng(1).standard_normal((6, *SHAPE), dtype=np.float32)
    engine = OpenVinoEngine(file, threads=1)
    expected = engine._run(engine._request, [images])[0]
    for size in (1, 6, 2, 1, 3, 4, 5, 6):
        np.testing.assert_allclose(engine.run(images[:size]), expected[:size], rtol=1e-5, atol=1e-6)
    assert [shapes[0][0] for shapes in engine._by_shapes] == [1, 6, 2, 3]


def test_networks_with_concatenations_have_one_program(tmp_path):
    """OpenVINO 2026.4 may crash when it compiles one for a fixed size."""
    file = tmp_path / "concat.onnx"
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["x", "x"], ["both"], axis=1),
            helper.make_node("GlobalAveragePool", ["both"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["logits"]),
        ],
        "concat",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *SHAPE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 6])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(file))
    engine = OpenVinoEngine(file, threads=1)
    images = np.random.default_rng(1).standard_normal((2, *SHAPE), dtype=np.float32)
    mean = images.mean((2, 3))
    np.testing.assert_allclose(engine.run(images), np.concatenate([mean, mean], 1), atol=1e-6)
    assert engine._by_shapes == {}
