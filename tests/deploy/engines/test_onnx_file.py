from __future__ import annotations

from lowbit.deploy.engines.engine import image_shape_of, reason


def test_the_reason_in_an_engines_message():
    assert reason(RuntimeError("[ONNXRuntimeError] : 7")) == "[ONNXRuntimeError] : 7"
    openvino = "Exception from src/core.cpp:125:\nCheck 'util' failed at src/x.cpp:2:\nunable to read it\n\n"
    assert reason(RuntimeError(openvino)) == "unable to read it"
    assert reason(ValueError()) == "ValueError"


def test_models_on_something_else_than_images():
    assert image_shape_of(["N", 10]) is None
