"""The integers that a layer is deployed with are those that it was trained with."""

from __future__ import annotations

import warnings

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import (
    calibrate,
    deployed_input,
    deployed_weight,
    eval_mode,
    fix_inputs,
    fixed_copy,
    fixed_recipe,
    integer_reference,
    preparation_of,
    prepare,
    quantize_layer,
)
from lowbit.nn.deployed_form import dynamic_inputs
from lowbit.nn.quantizer import Quantizer
from lowbit.recipe import make_recipe
from lowbit.recipe.plan import Forward, Plan
from lowbit.recipe.spec import TensorSpec
from tests.support.quant_layers import LAYERS, PLAN, inputs, seen
from tests.support.tiny_net import TinyNet, build_tiny


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
    with pytest.raises(LowbitError, match=r"chosen in every call.*use scaling moving_average"):
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


INPUT = {"grid": "int4", "sign": "auto", "granularity": "N", "observer": "mse"}
WEIGHT = {"grid": "int4", "granularity": "N", "rounding": "stochastic"}
GRADIENT = {"grid": "int4", "rounding": "stochastic"}
RULE = {
    "forward": {"input": INPUT, "weight": WEIGHT},
    "grad_input": {"grad_output": GRADIENT, "weight": {"grid": "int4", "granularity": "C"}},
    "grad_weight": {"grad_output": GRADIENT, "input": INPUT},
}


def batches(*seeds: int) -> list[paddle.Tensor]:
    return [
        paddle.to_tensor(np.random.default_rng(seed).standard_normal((4, 3, 16, 16), dtype=np.float32))
        for seed in seeds
    ]


def trained(*more_rules) -> nn.Layer:
    """A model after two steps of low-precision training."""
    model = prepare(build_tiny(seed=1), make_recipe({"rules": [RULE, *more_rules]}))
    for images in batches(1, 2):
        model(images).sum().backward()
    return model


def fixed_form(model) -> nn.Layer:
    fixed = prepare(build_tiny(seed=9), fixed_recipe(model, steps=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Paddle's, about names that are not in a state
        assert fix_inputs(model, fixed, batches(3, 4, 5)) == 3
    return fixed


def test_which_inputs_have_no_scale_yet():
    kept = {
        "match": {"name": "head"},
        "forward": {"input": {"granularity": "per-tensor", "scaling": "moving_average", "sign": "fixed"}},
    }
    assert dynamic_inputs(trained()) == ["conv", "head"]
    assert dynamic_inputs(trained(kept)) == ["conv"]
    assert dynamic_inputs(trained({"match": {"name": "conv"}, "skip": True})) == ["head"]
    full = {"match": {"name": "conv"}, "forward": {"input": {"grid": "full"}}}
    assert dynamic_inputs(trained(full)) == ["head"]
    assert dynamic_inputs(build_tiny()) == []
    assert dynamic_inputs(fixed_form(trained())) == []


def test_the_recipe_is_forward_alone_rounded_to_nearest():
    recipe = fixed_recipe(
        trained({"match": {"name": "head"}, "forward": {"weight": {"grid": "int8"}}}), steps=7
    )
    plans = recipe.plans(build_tiny())
    assert all(plan.is_straight_through and not plan.is_stochastic for plan in plans.values())
    assert str(plans["conv"].forward.input) == "int4/uint4 per-tensor mse(1) fixed"
    assert [str(plans[name].forward.weight) for name in ("conv", "head")] == ["int4 N", "int8 N"]
    assert recipe.calibration.steps == 7


def test_weights_statistics_and_signs_are_the_models():
    model = trained()
    fixed = fixed_form(model)
    old, new = model.state_dict(), fixed.state_dict()
    for name in set(old) & set(new):
        np.testing.assert_array_equal(old[name].numpy(), new[name].numpy(), err_msg=name)
    assert {name for name in new if name not in old} == {
        name for name in new if ".input_quantizer.kept." in name
    }
    assert fixed.conv.input_quantizer.grid().signed and not fixed.head.input_quantizer.grid().signed
    assert not fixed.training


def test_scales_are_the_means_of_what_the_observer_finds_in_the_quantized_models_inputs():
    model = trained()
    fixed = fixed_form(model)
    seen: dict[str, list[paddle.Tensor]] = {"conv": [], "head": []}
    for name, found in seen.items():
        getattr(model, name).register_forward_pre_hook(lambda _, given, found=found: found.append(given[0]))
    with eval_mode(model):
        for images in batches(3, 4, 5):
            model(images)
    for name, found in seen.items():
        quantizer = getattr(fixed, name).input_quantizer
        grid = quantizer.grid()
        ranges = [quantizer.spec.observer.range(x, grid, tuple(range(x.ndim))).item() for x in found]
        expected = np.mean(ranges) / grid.highest
        assert deployed_input(getattr(fixed, name)).scale == pytest.approx(expected, rel=1e-5)


def test_the_model_itself_stays_as_it_was():
    model = trained()
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    fixed_form(model)
    assert model.training and preparation_of(model).recipe.rules[0].grad_input is not None
    assert not model.conv._forward_pre_hooks
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name], err_msg=name)


def test_both_forms_answer_alike():
    """Not the same: a scale per image is another one than a scale for all."""
    model = trained()
    fixed = fixed_form(model)
    images = batches(6)[0]
    with eval_mode(model):
        expected = model(images).numpy()
    found = fixed(images).numpy()
    assert 0 < np.abs(found - expected).max() < 0.3 * np.abs(expected).max()


def test_without_images_nothing_is_fixed():
    model = trained()
    fixed = prepare(build_tiny(), fixed_recipe(model, steps=3))
    with pytest.raises(LowbitError, match="no images to fix the inputs' scales on"):
        fix_inputs(model, fixed, [])


@pytest.mark.parametrize("more", [(), ({"match": {"name": "conv"}, "skip": True},)])
def test_a_copy_is_the_same_as_a_network_prepared_anew(more):
    model = trained(*more)
    before = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    copied, anew = fixed_copy(model, steps=3), fixed_form(model)
    assert fix_inputs(model, copied, batches(3, 4, 5)) == 3
    assert preparation_of(copied).recipe == preparation_of(anew).recipe
    assert [one.plan for one in preparation_of(copied).layers] == [
        one.plan for one in preparation_of(anew).layers
    ]
    ours, theirs = copied.state_dict(), anew.state_dict()
    assert list(ours) == list(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name].numpy(), theirs[name].numpy(), err_msg=name)
    with eval_mode(copied), eval_mode(anew):
        x = batches(7)[0]
        np.testing.assert_array_equal(copied(x).numpy(), anew(x).numpy())
    assert all((before[name] == tensor.numpy()).all() for name, tensor in model.state_dict().items())
    assert dynamic_inputs(model) and not dynamic_inputs(copied)


@pytest.mark.parametrize("plan", PLAN)
@pytest.mark.parametrize("kind", LAYERS)
def test_evaluation_is_the_trained_computation_in_integers(kind: str, plan: str) -> None:
    layer, x = seen(kind, plan), inputs(kind)
    layer.eval()
    straight_through = layer(x)  # records gradients: fake-quantized values are multiplied
    with paddle.no_grad():
        integers = layer(x)
    np.testing.assert_allclose(integers.numpy(), straight_through.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("plan", PLAN)
@pytest.mark.parametrize("kind", LAYERS)
def test_the_exact_reference_gives_the_same_bits(kind: str, plan: str) -> None:
    layer, x = seen(kind, plan), inputs(kind)
    with eval_mode(layer):
        model = layer(x).numpy()
    with integer_reference(layer):
        exact = layer(x).numpy()
    assert (model == exact).all()
    assert layer.training and not hasattr(layer, "_lowbit_exact_product")


def test_the_reference_stays_exact_where_floats_do_not() -> None:
    layer = quantize_layer(nn.Linear(60_000, 1, bias_attr=False), PLAN["pact"], name="wide")
    layer.weight.set_value(paddle.full([60_000, 1], 1.0))
    layer.train()
    layer(paddle.ones([1, 60_000]))
    x = np.ones([1, 60_000], np.float32)
    x[0, 0] = -1.0 / 127  # the sum of 59999 * 127 * 127 - 127 is odd and far above 2^24
    with integer_reference(layer):
        scales = np.float32(deployed_input(layer).scale) * deployed_weight(layer)[1].scale.reshape(-1)[0]
        assert layer(paddle.to_tensor(x)).item() == np.float32(59_999 * 127 * 127 - 127) * scales


@settings(max_examples=30)
@given(bits=st.integers(2, 8), unsigned=st.booleans(), seed=st.integers(0, 1000))
def test_a_whole_model_gives_the_same_integers_in_every_layer(bits: int, unsigned: bool, seed: int) -> None:
    paddle.seed(seed)
    grid = f"{'uint' if unsigned else 'int'}{bits}"
    recipe = make_recipe(
        {
            "rules": [
                {
                    "forward": {
                        "input": {"grid": grid, "scaling": "moving_average"},
                        "weight": {"grid": f"int{bits}", "granularity": "N"},
                    }
                }
            ]
        }
    )
    model = prepare(TinyNet(), recipe)
    images = paddle.randn([2, 3, 8, 8])
    calibrate(model, [images])
    seen: list[np.ndarray] = []
    quantizers = [layer.input_quantizer for layer in model.sublayers() if hasattr(layer, "input_quantizer")]
    plain = Quantizer.integers

    def recorded(self: Quantizer, x: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        integers, scale = plain(self, x)
        if self.role == "input":
            seen.append(integers.numpy())
        return integers, scale

    # In the class: a quantizer with a method of its own takes another way.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Quantizer, "integers", recorded)
        with eval_mode(model):
            model(images)
        ours, seen[:] = list(seen), []
        with integer_reference(model):
            model(images)
    assert len(ours) == len(seen) == len(quantizers)
    assert all((a == b).all() for a, b in zip(ours, seen, strict=True))


def test_in_evaluation_with_gradients_they_still_go_straight_through() -> None:
    layer = seen("conv", "learned")
    layer.eval()
    layer(inputs("conv")).sum().backward()
    assert float(paddle.abs(layer.weight.grad).sum()) > 0
