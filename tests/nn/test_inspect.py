"""Operands seen as they are made, only while somebody watches."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import calibrate, prepare
from lowbit.nn.batch_norm import refresh_batch_norm
from lowbit.nn.inspect import (
    kept_scales,
    layers_by_name,
    operand_health,
    watching,
    weight_health,
    weight_histogram,
)
from lowbit.nn.inspect import quantization_mode as as_tested  # a name that pytest takes for no test
from lowbit.recipe import Recipe, make_recipe
from tests.support.commands import W4A4G4
from tests.support.tiny_net import build_tiny

W4A4 = {
    "input": {"grid": "int4", "sign": "auto", "granularity": "N"},
    "weight": {"grid": "int4", "granularity": "N"},
}
GRADIENTS = {
    "grad_input": {"grad_output": {"grid": "int4", "granularity": "NHW", "rounding": "stochastic"}},
    "grad_weight": {"grad_output": {"grid": "int4", "granularity": "NC", "rounding": "stochastic"}},
}
RECIPES = {
    "low precision": {"rules": [{"forward": W4A4, **GRADIENTS}]},
    "qat": {"rules": [{"forward": W4A4}], "calibration": {"steps": 1}},
    "folded": {
        "rules": [{"forward": W4A4}],
        "calibration": {"steps": 1},
        "batch_norm": {"fold": "training", "freeze_after": 0},
    },
}


def images() -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(0).standard_normal((4, 3, 16, 16), dtype=np.float32))


@pytest.fixture(params=RECIPES)
def model(request) -> nn.Layer:
    model = build_tiny(seed=3)
    model.norm.weight.set_value(paddle.linspace(0.5, 2.0, 8))
    prepare(model, make_recipe(RECIPES[request.param]), images())
    if request.param == "low precision":
        model(images())  # there the sign is seen in training
    else:
        calibrate(model, [images()])
    return model


def plain(model, *, weights: bool) -> nn.Layer:
    """The unquantized network with the model's weights, or with what its weights are on their grids."""
    other = build_tiny()
    folded = hasattr(model.conv, "fold")
    state = {name: value for name, value in model.state_dict().items() if name in other.state_dict()}
    for name in ("conv", "head"):
        layer = getattr(model, name)
        weight, bias = layer.effective_weight_and_bias()
        state |= {
            f"{name}.weight": layer.weight_quantizer(weight) if weights else weight,
            f"{name}.bias": bias,
        }
    other.set_state_dict({name: value.detach().clone() for name, value in state.items()})
    if folded:  # the convolution does the batch norm's work
        other.norm.forward = lambda x: x
    return other.eval()


@pytest.mark.parametrize("how", ["weights", "full"])
def test_what_is_left_out_is_as_if_it_had_never_been_there(model, how):
    model.eval()
    with as_tested(model, how):
        found = model(images()).numpy()
    expected = plain(model, weights=how == "weights")(images()).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(found - model(images()).numpy()).max() > 1e-3


def test_as_quantized_is_as_in_evaluation(model):
    model.eval()
    with paddle.no_grad():
        expected = model(images()).numpy()
    with as_tested(model, "quantized"):
        np.testing.assert_array_equal(model(images()).numpy(), expected)


@pytest.mark.parametrize("how", ["quantized", "weights", "full"])
def test_the_model_comes_back_as_it_was(model, how):
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    model.eval()
    expected = model(images()).numpy()
    model.train()
    with pytest.raises(ZeroDivisionError), as_tested(model, how):
        assert set(model.state_dict()) == set(before)
        model(images())
        raise ZeroDivisionError
    assert model.training and model.conv.input_quantizer.training
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name], err_msg=name)
    model.eval()
    np.testing.assert_array_equal(model(images()).numpy(), expected)


@pytest.mark.parametrize("how", ["quantized", "weights", "full"])
def test_batch_norm_can_be_refreshed_within_it(model, how):
    with as_tested(model, how):
        refresh_batch_norm(model, [images()])
        assert not model.norm.training
    assert model.norm.training


def test_another_word_is_an_error():
    message = r'not tested as "weight"; did you mean "weights"'
    with pytest.raises(LowbitError, match=message), as_tested(build_tiny(), "weight"):
        pass


def test_in_full_it_is_the_model_before_to_the_last_bit():
    model = build_tiny()
    with as_tested(model, "full"):
        before = model(images()).numpy()
    prepare(model, make_recipe({"weight_bits": 2, "activation_quantize_type": "abs_max"}))
    with as_tested(model, "full"):
        np.testing.assert_array_equal(model(images()).numpy(), before)


@pytest.fixture
def watched():
    return prepare(build_tiny(), make_recipe(W4A4G4))


def _step(model) -> None:
    paddle.seed(0)
    model(paddle.randn([2, 3, 32, 32])).sum().backward()


def test_every_operand_is_measured(watched):
    with watching(watched) as seen:
        _step(watched)
    assert set(seen) == {"conv", "head"}
    assert {"forward.input", "forward.weight", "grad_weight.grad_output"} <= set(seen["conv"])
    assert all(health.sqnr > 0 for health in seen["head"].values())


def test_one_can_look_in_another_way(watched):
    with watching(watched, lambda x, made: (x.shape, made.highest, operand_health(x, made))) as seen:
        _step(watched)
    shape, highest, health = seen["head"]["grad_input.grad_output"]
    assert (shape, highest) == ([2, 4], 7) and health.clipped == 0


def test_nothing_is_seen_when_nobody_watches(watched):
    with watching(watched, wanted=False) as seen:
        _step(watched)
    assert seen == {}
    with watching(watched) as seen:
        pass
    _step(watched)
    assert seen == {"conv": {}, "head": {}}


def _prepared(**weight: str) -> nn.Layer:
    rule = {"forward": {"weight": {"grid": "int4", "granularity": "N", **weight}}}
    return prepare(build_tiny(), Recipe(rules=[rule]))


def test_health_and_histogram_are_those_of_what_is_multiplied():
    model = _prepared()
    model.eval()
    layer = model.conv
    on_grid = layer.weight_quantizer(layer.weight).numpy()
    weight = layer.weight.numpy()
    sqnr = 10 * np.log10((weight**2).sum() / ((on_grid - weight) ** 2).sum())
    assert weight_health(layer).sqnr == pytest.approx(sqnr, abs=1e-3)
    scale = np.abs(weight).max(axis=(1, 2, 3)) / 7
    assert kept_scales(layer) == {"forward.weight": pytest.approx(scale.mean(), rel=1e-5)}
    found = weight_histogram(layer)
    integers = np.rint(on_grid / scale[:, None, None, None]).astype(int)
    assert found.levels == [int((integers == level).sum()) for level in range(-8, 8)]


def test_the_histogram_of_a_tiny_learned_scale_is_all_clipped():
    model = _prepared(scaling="learned")
    model(paddle.randn([2, 3, 32, 32]))
    layer = model.conv
    layer.weight_quantizer.step.value.set_value(paddle.full_like(layer.weight_quantizer.step.value, 1e-38))
    with np.errstate(all="raise"):
        found = weight_histogram(layer)
    assert found.clipped == 1.0 and sum(found.levels) == layer.weight.size


def test_kept_scales_of_inputs():
    rule = {"forward": {"input": {"grid": "int8", "scaling": "fixed"}}}
    model = prepare(build_tiny(), Recipe(rules=[rule], calibration={"steps": 1}))
    assert kept_scales(model.conv) == {}  # nothing seen yet
    calibrate(model, [paddle.full([2, 3, 32, 32], 254.0)])
    assert kept_scales(model.conv) == {"forward.input": pytest.approx(2.0)}
    assert weight_health(model.conv) is None
    assert weight_histogram(model.conv).levels is None


def test_layers_have_the_names_of_plans():
    assert list(layers_by_name(_prepared())) == ["conv", "head"]
    assert kept_scales(build_tiny().conv) == {}
