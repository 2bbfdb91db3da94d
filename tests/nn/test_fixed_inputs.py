from __future__ import annotations

import warnings

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import (
    deployed_input,
    eval_mode,
    fix_inputs,
    fixed_copy,
    fixed_recipe,
    preparation_of,
    prepare,
)
from lowbit.nn.deployed_form import dynamic_inputs
from lowbit.recipe import make_recipe
from tests.support.tiny_net import build_tiny

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
    assert str(plans["conv"].forward.input) == "int4/uint4 per-tensor mse fixed"
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
    for name, inputs in seen.items():
        getattr(model, name).register_forward_pre_hook(
            lambda _, given, inputs=inputs: inputs.append(given[0])
        )
    with eval_mode(model):
        for images in batches(3, 4, 5):
            model(images)
    for name, inputs in seen.items():
        quantizer = getattr(fixed, name).input_quantizer
        grid = quantizer.grid()
        ranges = [quantizer.spec.observer.range(x, grid, tuple(range(x.ndim))).item() for x in inputs]
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
