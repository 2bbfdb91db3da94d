"""What only ONNX Runtime's engine has; what it shares with OpenVINO's is in test_onnx_engines.py."""

from __future__ import annotations

import numpy as np
from onnx.reference import ReferenceEvaluator

from lowbit.deploy import OnnxRuntimeEngine
from tests.support.small_onnx import SHAPE, small_onnx


def test_without_optimisations_the_graph_runs_as_it_was_written(tmp_path):
    file = small_onnx(tmp_path / "inference.onnx")
    images = np.random.default_rng(2).standard_normal((4, *SHAPE), dtype=np.float32)
    engine = OnnxRuntimeEngine(file, optimize=False)
    assert not engine.options.optimize
    names = ["logits", "first", "second"]
    expected = ReferenceEvaluator(str(file)).run(names, {"x": images})
    seen = engine.run_with(images, names)
    for name, value in zip(names, expected, strict=True):
        np.testing.assert_allclose(seen[name], value, rtol=1e-4, atol=1e-4)
