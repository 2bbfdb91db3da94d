from __future__ import annotations

from tests.support.examples import weight_type_here


def test_rules_reach_single_layers_and_engines_answer_as_trained(run_example, processor):
    made = run_example("vision_model.py")
    assert "20 of 21 layers are quantized" in made.printed
    assert "fc is not: skipped by rule 3" in made.printed
    assert "1 with input int8/uint8 per-tensor fixed, weight int8-narrow N" in made.printed
    assert made.figure("quantized ") > 40  # chance is 10
    assert made.onnx_types() == {weight_type_here(): 20, "FLOAT": 1}
    assert set(made.agreements()) == {"ONNX Runtime", "OpenVINO"}
    assert min(made.agreements().values()) >= 97.5  # 3 of 120 images
