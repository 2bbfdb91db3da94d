"""The integers that a layer is deployed with are those that it was trained with."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import deployed_input, deployed_weight, quantize_layer
from lowbit.recipe.plan import Forward, Plan
from lowbit.recipe.spec import TensorSpec


def _layer(**input_: str) -> nn.Layer:
    paddle.seed(0)
    plan = Plan(
        forward=Forward(
            input=TensorSpec(**({"grid": "int8", "scaling": "moving_average"} | input_)),
            weight=TensorSpec(grid="int4", granularity="N", scaling="learned"),
        )
    )
    layer = quantize_layer(nn.Linear(4, 3), plan, name="fc")
    layer.train()
    return layer


def _batch() -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(0).standard_normal((8, 4), dtype=np.float32))


def test_the_weight_is_integers_times_scale() -> None:
    layer = _layer()
    layer(_batch())
    integers, operand = deployed_weight(layer)
    assert integers.min() >= operand.lowest == -8 and integers.max() <= operand.highest == 7
    assert operand.bits == 4 and operand.signed
    with paddle.no_grad():
        fake = layer.weight_quantizer(layer.weight).numpy()
    assert (integers * operand.scale.astype(np.float32) == fake).all()


@pytest.mark.parametrize(("grid", "signed"), [("int8", True), ("uint8", False)])
def test_to_clip_and_round_is_to_round_and_clip_to_the_deployed_bounds(grid: str, signed: bool) -> None:
    layer = _layer(grid=grid, clip="pact")
    layer(_batch())
    layer.input_quantizer.alpha.value.set_value(paddle.full([1], 0.7))
    operand = deployed_input(layer)
    assert (operand.lowest < 0) == signed and operand.highest < 2**7
    x = np.linspace(-3, 3, 4001, dtype=np.float32)
    clipped, scale = layer.input_quantizer.integers(paddle.to_tensor(x))
    assert scale.item() == operand.scale
    assert (np.clip(np.rint(x / operand.scale), operand.lowest, operand.highest) == clipped.numpy()).all()


def test_before_a_batch_was_seen_there_is_nothing_to_deploy() -> None:
    with pytest.raises(LowbitError, match=r'input of layer "fc".*no finite batch'):
        deployed_input(_layer())


def test_a_scale_of_every_call_cannot_be_deployed() -> None:
    with pytest.raises(LowbitError, match=r"chosen anew in every call.*use scaling moving_average"):
        deployed_input(_layer(scaling="dynamic"))


def test_a_scale_per_input_channel_cannot_be_deployed() -> None:
    layer = _layer(granularity="C")
    layer(_batch())
    with pytest.raises(LowbitError, match=r"scale per channel.*use granularity per-tensor"):
        deployed_input(layer)


def test_a_full_operand_has_no_integers() -> None:
    layer = quantize_layer(nn.Linear(4, 3), Plan(forward=Forward(weight=TensorSpec(grid="int8"))), name="fc")
    with pytest.raises(LowbitError, match='input of layer "fc" is on the grid full'):
        deployed_input(layer)


def test_weights_that_are_not_numbers_are_refused() -> None:
    layer = _layer()
    layer(_batch())
    weight = layer.weight.numpy()
    weight[0, 0] = np.nan
    layer.weight.set_value(weight)
    with pytest.raises(LowbitError, match="NaN or Inf"):
        deployed_weight(layer)


def test_a_bound_below_zero_is_used_as_training_uses_it() -> None:
    layer = _layer(clip="pact")
    layer(_batch())
    layer.input_quantizer.alpha.value.set_value(paddle.full([1], -3.0))
    operand = deployed_input(layer)
    assert operand.lowest == operand.highest == 0
