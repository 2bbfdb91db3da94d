from __future__ import annotations

import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.recipe import PACT, PaddleSlimConfig, TensorSpec, parse_quant_config

MODEL = nn.Sequential(nn.Conv2D(3, 4, 3), nn.Linear(4, 4), nn.Conv2DTranspose(4, 4, 3))
DEFAULTS = {
    "weight_preprocess_type": None,
    "activation_preprocess_type": None,
    "weight_quantize_type": "channel_wise_abs_max",
    "activation_quantize_type": "moving_average_abs_max",
    "weight_bits": 8,
    "activation_bits": 8,
    "dtype": "int8",
    "window_size": 10000,
    "moving_rate": 0.9,
    "quantizable_layer_type": ["Conv2D", "Linear"],
    "fuse_conv_bn": False,
    "onnx_format": True,
}


def _plan(config: dict | None, layer: str = "0"):
    return parse_quant_config(config).recipe().plans(MODEL)[layer]


def test_keys_and_defaults_are_paddleslims():
    assert PaddleSlimConfig().model_dump() == DEFAULTS
    assert parse_quant_config(None) == parse_quant_config({}) == parse_quant_config(DEFAULTS)


def test_the_defaults():
    plan = _plan(None)
    assert plan.forward.weight == TensorSpec(grid="int8-narrow", granularity="N", scaling="dynamic")
    assert plan.forward.input == TensorSpec(grid="int8-narrow", scaling="moving_average(0.9)")
    assert plan.is_straight_through


@pytest.mark.parametrize("bits", range(2, 9))
def test_bits(bits):
    plan = _plan({"weight_bits": bits, "activation_bits": 10 - bits})
    assert plan.forward.weight.grid.highest == -plan.forward.weight.grid.lowest == 2 ** (bits - 1) - 1
    assert plan.forward.input.grid.bits == 10 - bits


@pytest.mark.parametrize(
    ("word", "spec"),
    [
        ("abs_max", "int4-narrow per-tensor"),
        ("channel_wise_abs_max", "int4-narrow N"),
        ("range_abs_max", "int4-narrow per-tensor window(100)"),
        ("moving_average_abs_max", "int4-narrow per-tensor moving_average(0.95)"),
        ("lsq_weight", "int4 per-tensor learned"),
        ("channel_wise_lsq_weight", "int4 N learned"),
    ],
)
def test_weight_quantize_type(word, spec):
    config = {"weight_quantize_type": word, "weight_bits": 4, "window_size": 100, "moving_rate": 0.95}
    assert str(_plan(config).forward.weight) == spec


@pytest.mark.parametrize(
    ("word", "spec"),
    [
        ("abs_max", "int4-narrow per-tensor"),
        ("range_abs_max", "int4-narrow per-tensor window(100)"),
        ("moving_average_abs_max", "int4-narrow per-tensor moving_average(0.95)"),
        ("lsq_act", "int4 per-tensor learned"),
    ],
)
def test_activation_quantize_type(word, spec):
    config = {"activation_quantize_type": word, "activation_bits": 4, "window_size": 100, "moving_rate": 0.95}
    assert str(_plan(config).forward.input) == spec


class _CompatPACT(PACT, nn.Layer):
    """As the layer that takes PaddleSlim's place will be."""


@pytest.mark.parametrize(
    "pact", ["PACT", PACT, _CompatPACT, type("PACT", (), {"__module__": "paddleslim.x"})]
)
def test_pact_as_a_word_or_a_class(pact):
    plan = _plan({"activation_preprocess_type": pact})
    assert (plan.forward.input.clip, plan.forward.weight.clip) == ("pact", "none")
    assert _plan({"weight_preprocess_type": pact}).forward.weight.clip == "pact"


def test_layer_types():
    quantized = [not _plan(None, layer).is_full for layer in "012"]
    assert quantized == [True, True, False]
    assert not _plan({"quantizable_layer_type": ["Conv2DTranspose"]}, "2").is_full
    assert _plan({"quantizable_layer_type": ["Conv2DTranspose"]}, "0").is_full


def test_fuse_conv_bn():
    assert parse_quant_config({"fuse_conv_bn": True}).recipe().batch_norm.fold == "training"
    assert parse_quant_config({}).recipe().batch_norm.fold == "export"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"weight_bits": 0},
            "weight_bits: lowbit has grids of 2 to 8 bits (PaddleSlim takes 1 to 16), got 0",
        ),
        ({"weight_bits": 1}, "got 1"),
        ({"activation_bits": 17}, "activation_bits: lowbit has grids of 2 to 8 bits"),
        ({"weight_bits": "8"}, "weight_bits: expected a whole number, got '8'"),
        ({"weight_bits": 8.0}, "expected a whole number"),
        ({"weight_bits": True}, "expected a whole number"),
        ({"weigth_bits": 8}, 'weigth_bits: unknown key, did you mean "weight_bits"?'),
        ({"activation_quantize_type": "moving_averge_abs_max"}, 'did you mean "moving_average_abs_max"?'),
        ({"activation_quantize_type": "channel_wise_abs_max"}, "activation_quantize_type: must be"),
        ({"weight_quantize_type": "lsq_act"}, "weight_quantize_type: must be"),
        ({"activation_preprocess_type": "pact"}, "activation_preprocess_type: must be 'PACT'"),
        ({"activation_preprocess_type": nn.ReLU}, "ReLU is a class of your own"),
        ({"activation_preprocess_type": type("PACT", (), {})}, "PACT is a class of your own"),
        ({"dtype": "int4"}, "dtype: must be 'int8'"),
        ({"window_size": 0}, "window_size: must be greater than or equal to 1"),
        ({"moving_rate": 1}, "moving_rate: must be less than 1"),
        ({"moving_rate": "fast"}, "moving_rate: expected a number"),
        ({"quantizable_layer_type": "Conv2D"}, "quantizable_layer_type: expected a list"),
        ({"quantizable_layer_type": ["Conv2d"]}, 'did you mean "Conv2D"?'),
        ({"quantizable_layer_type": []}, "too few entries"),
        ({"fuse_conv_bn": "perhaps"}, "fuse_conv_bn: expected true or false"),
        ({"onnx_format": 2}, "onnx_format: expected true or false"),
    ],
)
def test_mistakes(config, message):
    with pytest.raises(LowbitError) as error:
        parse_quant_config(config)
    assert str(error.value).startswith("quant_config: ")
    assert message in str(error.value)


def test_every_mistake_is_listed():
    with pytest.raises(LowbitError) as error:
        parse_quant_config({"weight_bits": 99, "window_size": -1})
    assert len(str(error.value).splitlines()) == 2
