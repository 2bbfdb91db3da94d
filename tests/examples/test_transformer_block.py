from __future__ import annotations

from transformer_block import RECIPE, Net

from lowbit.recipe import load_recipe


def test_trained_in_4_bits_and_deployed_in_4_bits(run_example):
    made = run_example("transformer_block.py")
    assert "6 of 8 layers are quantized" in made.printed
    assert made.figure("tested as W4A4") > 70  # chance is 10
    assert made.figure("inputs fixed") > 70
    assert made.onnx_types()["INT4"] == 6
    assert set(made.agreements()) == {"ONNX Runtime", "OpenVINO"}
    assert min(made.agreements().values()) >= 98


def test_its_six_layers_quantize_gradients_and_run_in_integers():
    plans = [plan for plan in load_recipe(RECIPE).plans(Net()).values() if not plan.is_full]
    assert len(plans) == 6
    for plan in plans:
        assert {str(product.grad_output.grid) for product in (plan.grad_input, plan.grad_weight)} == {"int4"}
        assert set(plan.runs_in_integers("Linear").values()) == {None}
