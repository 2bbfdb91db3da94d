from __future__ import annotations

import paddle
from own_network import accuracy, digits

from tests.support.examples import weight_type_here

ENGINES = {"Paddle Inference", "ONNX Runtime", "OpenVINO"}


def test_what_is_exported_answers_as_trained(run_example, processor):
    made = run_example("own_network.py")
    assert made.figure("fp32") > 85
    assert made.figure("quantized") > 85
    assert set(made.agreements()) == ENGINES
    assert min(made.agreements().values()) >= 99
    assert made.onnx_types() == {weight_type_here(): 3}
    program = paddle.jit.load(str(made.folder / "model"))  # read by Paddle itself, without lowbit
    assert f"{accuracy(program, *digits('val')):.2%}" == f"{made.figure('quantized'):.2f}%"
