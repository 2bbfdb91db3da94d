"""Folded layers train on the batch's statistics, and evaluate as one product with the folded weight."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.accel.amp_autocast import rounding
from lowbit.deploy import PaddleEngine, export_model
from lowbit.models import build_model
from lowbit.nn import (
    calibrate,
    convert_sync_batch_norm,
    deployed_weight,
    eval_mode,
    integer_reference,
    preparation_of,
    prepare,
)
from lowbit.numerics import BF16
from lowbit.recipe import make_recipe
from tests.support import folded_ranks as ranks
from tests.support.folded_twin import Twin
from tests.support.two_ranks import run_on_two_ranks

FOLD = {"batch_norm": {"fold": "training"}}


def _recipe(weight, input_=None, **settings):
    forward = {"input": input_ or {"grid": "int8"}, "weight": weight}
    return make_recipe({"rules": [{"forward": forward}], **FOLD, **settings})


PER_TENSOR = {"grid": "int4-narrow"}
LSQ = {"grid": "int4", "granularity": "N", "scaling": "learned"}
W4A4_LSQ = _recipe(LSQ, {"grid": "int4", "sign": "auto", "scaling": "learned"}, calibration={"steps": 1})
W4A8 = _recipe(PER_TENSOR, {"grid": "int8-narrow", "scaling": "moving_average"})
W8A8_PACT = _recipe(
    {"grid": "int8-narrow", "granularity": "N"},
    {"grid": "int8-narrow", "scaling": "moving_average", "clip": "pact"},
)


def _settle(model, seed=0):
    """Statistics and weights of batch norm that are no longer 0 and 1, one of the weights negative."""
    rng = np.random.default_rng(seed)
    for layer in model.sublayers():
        if isinstance(layer, nn.layer.norm._BatchNormBase):
            for tensor, low, high in (
                *((layer._mean, -0.5, 0.5), (layer._variance, 0.1, 3.0)),
                *((layer.weight, 0.2, 2.0), (layer.bias, -0.5, 0.5)),
            ):
                if tensor is not None:
                    tensor.set_value(rng.uniform(low, high, tensor.shape).astype(np.float32))
            if layer.weight is not None:
                _set(layer.weight, 0, -layer.weight[0].item())
    return model


def _set(parameter, index, value):
    values = parameter.numpy()
    values[index] = value
    parameter.set_value(values)


def _random(shape, seed=0):
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


KINDS = {
    "linear": ([nn.Linear, 5, 4], nn.BatchNorm1D, [6, 5]),
    "conv": ([nn.Conv2D, 3, 4, 3], nn.BatchNorm2D, [4, 3, 6, 6]),
    "linear, no bias": ([nn.Linear, 5, 4, None, False], nn.BatchNorm1D, [6, 5]),
}


def _pair(kind, recipe, **options):
    (make, *sizes), norm, shape = KINDS[kind]
    paddle.seed(0)
    model = _settle(nn.Sequential(make(*sizes), norm(4, momentum=0.7, **options)))
    x = _random(shape)
    return prepare(model, recipe, x), x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [PER_TENSOR, LSQ], ids=["per-tensor", "lsq"])
@pytest.mark.parametrize("global_statistics", [None, True])
def test_training_and_all_gradients_are_those_of_the_twin(kind, weight, global_statistics):
    model, x = _pair(kind, _recipe(weight), use_global_stats=global_statistics)
    assert len(preparation_of(model).batch_norms.pairs) == 1
    layer, norm = model
    x.stop_gradient = False
    twin = Twin(layer, norm)  # reads the values of now: the forward pass moves the statistics
    y = model(x)
    if weight is LSQ:
        twin.step = layer.weight_quantizer.step.value.numpy().astype(np.float64)
    expected = twin.forward(x.numpy())
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm._mean.numpy(), twin.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm._variance.numpy(), twin.variance, rtol=1e-5)

    dy = _random(y.shape, seed=1)
    (y * dy).sum().backward()
    found = {"x": x.grad, "weight": layer.weight.grad, "gamma": norm.weight.grad, "beta": norm.bias.grad}
    if layer.bias is not None:
        found["bias"] = layer.bias.grad
    if weight is LSQ:
        found["step"] = layer.weight_quantizer.step.value.grad
    for name, gradient in twin.backward(dy.numpy()).items():
        if name in found:
            scale = max(1.0, np.abs(gradient).max())
            error = np.abs(found.pop(name).numpy() - gradient).max() / scale
            assert error < 2e-5, (name, error)
    assert not found


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_is_one_product_with_the_folded_weight(kind):
    model, x = _pair(kind, _recipe(PER_TENSOR))
    layer, norm = model.eval()
    gain = norm.weight.numpy() / np.sqrt(norm._variance.numpy().astype(np.float64) + norm._epsilon)
    folded = layer.weight.numpy() * (gain if kind.startswith("linear") else gain[:, None, None, None])
    integers, operand = deployed_weight(layer)
    scale = np.abs(folded).max() / 7
    np.testing.assert_array_equal(integers, np.rint(folded / scale))
    np.testing.assert_allclose(operand.scale.item(), scale, rtol=1e-6)
    with paddle.no_grad():
        y = model(x)
        assert norm(y) is y
        weight = paddle.to_tensor((integers * operand.scale).astype(np.float32))
        shift = norm.bias.numpy() - norm._mean.numpy() * gain
        shift += 0 if layer.bias is None else layer.bias.numpy() * gain
        by_hand = layer.product(layer.input_quantizer(x), weight, paddle.to_tensor(shift.astype(np.float32)))
    np.testing.assert_allclose(y.numpy(), by_hand.numpy(), rtol=0, atol=1e-5)
    with integer_reference(model):
        np.testing.assert_array_equal(model(x).numpy(), y.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_training_with_statistics_that_stand_still_is_evaluation(kind):
    model, x = _pair(kind, _recipe(PER_TENSOR, batch_norm={"fold": "training", "freeze_after": 0}))
    trained = model(x).numpy()
    with eval_mode(model):
        evaluated = model(x).numpy()
    np.testing.assert_allclose(trained, evaluated, rtol=0, atol=1e-5)


def test_modes_of_the_two_may_differ():
    """A user freezes batch norms by norm.eval(), or refreshes their statistics in a model in evaluation."""
    model, x = _pair("conv", _recipe(PER_TENSOR))
    layer, norm = model
    with eval_mode(model):
        expected = model(x).numpy()
    before = norm._mean.numpy()
    norm.eval()
    with paddle.no_grad():
        np.testing.assert_allclose(model(x).numpy(), expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(norm._mean.numpy(), before)
    layer.eval(), norm.train()
    model(x)
    assert not np.array_equal(norm._mean.numpy(), before)


@pytest.mark.parametrize("weight", [PER_TENSOR, LSQ], ids=["per-tensor", "lsq"])
def test_a_gain_of_zero_can_be_left_again(weight):
    model, x = _pair("conv", _recipe(weight))
    norm = model[1]
    _set(norm.weight, 1, 0.0)
    y = model(x)
    np.testing.assert_allclose(y[:, 1].numpy(), norm.bias[1].item(), rtol=1e-6)
    (y * _random(y.shape, seed=1)).sum().backward()
    assert abs(norm.weight.grad[1].item()) > 1e-3
    assert all(np.isfinite(p.grad.numpy()).all() for p in model.parameters() if p.grad is not None)
    with eval_mode(model):
        np.testing.assert_allclose(model(x)[:, 1].numpy(), norm.bias[1].item(), rtol=1e-6)


def test_a_statistic_that_is_nan_is_seen():
    model, x = _pair("conv", _recipe(PER_TENSOR))
    _set(model[1]._variance, 0, float("nan"))
    assert np.isnan(model(x).numpy()).any()


def test_grouped_transposed_convolution():
    model = _settle(nn.Sequential(nn.Conv2DTranspose(4, 6, 3, groups=2, stride=2), nn.BatchNorm2D(6)))
    x = _random([2, 4, 5, 5])
    with eval_mode(model):
        exact = model(x).numpy()
    fine = {"grid": "int8", "granularity": "N"}
    recipe = make_recipe(
        {"rules": [{"match": {"type": "Conv2DTranspose"}, "forward": {"weight": fine}}], **FOLD}
    )
    prepare(model, recipe, x)
    assert preparation_of(model).batch_norms.pairs == [("0", "1")]
    with eval_mode(model):
        np.testing.assert_allclose(model(x).numpy(), exact, rtol=0, atol=0.02 * np.abs(exact).max())
        assert model[0](x, output_size=[12, 12]).shape == [2, 6, 12, 12]
    assert model(x).shape == list(exact.shape)


def test_names_stay_and_copies_are_apart():
    fp32 = _settle(build_model("resnet20", num_classes=10))
    model = prepare(build_model("resnet20", num_classes=10), W4A4_LSQ, _random([2, 3, 8, 8]))
    assert len(preparation_of(model).batch_norms.pairs) == 19
    missing, unexpected = model.set_state_dict(fp32.state_dict())
    assert not unexpected and all("quantizer" in key for key in missing)
    calibrate(model, [_random([4, 3, 8, 8])])
    twin = copy.deepcopy(model)
    assert twin.conv1.fold.norm is twin.bn1 and twin.bn1.fold.layer is twin.conv1
    with eval_mode(model):
        expected = model(_random([2, 3, 8, 8])).numpy()
    _train(model, steps=2)
    with eval_mode(twin):
        np.testing.assert_array_equal(twin(_random([2, 3, 8, 8])).numpy(), expected)


def _batch(seed):
    """Images whose brightness is their class."""
    labels = np.random.default_rng(seed).integers(0, 4, 16)
    brightness = paddle.to_tensor(labels.astype(np.float32)).reshape([-1, 1, 1, 1])
    return _random([16, 3, 8, 8], seed) * 0.3 + brightness, paddle.to_tensor(labels)


def _train(model, *, steps, first=0, optimizer=None, rate=0.02):
    optimizer = optimizer or paddle.optimizer.Momentum(rate, parameters=model.parameters())
    model.train()
    losses = []
    for step in range(first, first + steps):
        images, labels = _batch(step % 4)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def _small_net():
    paddle.seed(3)
    return nn.Sequential(
        *(nn.Conv2D(3, 8, 3, padding=1, bias_attr=False), nn.BatchNorm2D(8), nn.ReLU()),
        *(nn.Conv2D(8, 8, 3, stride=2, groups=8), nn.BatchNorm2D(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(8, 4)),
    )


@pytest.mark.parametrize("recipe", [W8A8_PACT, W4A4_LSQ, W4A8], ids=["pact", "lsq", "per-tensor"])
def test_training_learns_and_is_exported_with_its_answers(recipe, tmp_path):
    model = prepare(_small_net(), recipe, _random([2, 3, 8, 8]))
    if recipe.calibration.steps:
        calibrate(model, [_random([16, 3, 8, 8])])
    losses = _train(model, steps=40, rate=0.05)
    assert np.mean(losses[-4:]) < 0.6 * np.mean(losses[:4]), losses
    images, labels = _batch(0)
    with eval_mode(model):
        expected = model(images).numpy()
    assert (expected.argmax(1) == labels.numpy()).mean() > 0.6  # what was trained is what is evaluated
    options = {"model_name": "small", "image_shape": (3, 8, 8), "transform_ops": [], "classes": []}
    export_model(model, tmp_path, **options)  # compares, too
    answer = PaddleEngine(tmp_path, onednn=False).run(images.numpy())
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_training_resumes_exactly():
    def fresh():
        model = prepare(_small_net(), W8A8_PACT, _random([2, 3, 8, 8]))
        return model, paddle.optimizer.SGD(0.05, parameters=model.parameters())

    model, optimizer = fresh()
    _train(model, steps=5, optimizer=optimizer)
    saved = {key: value.clone() for key, value in model.state_dict().items()}
    expected = _train(model, steps=3, first=5, optimizer=optimizer)
    other, optimizer = fresh()
    missing, unexpected = other.set_state_dict(saved)
    assert not missing and not unexpected
    assert _train(other, steps=3, first=5, optimizer=optimizer) == expected
    for key, value in other.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), model.state_dict()[key].numpy(), err_msg=key)


def test_synchronized_batch_norms_and_mixed_precision():
    plain, synced = (
        prepare(net, W8A8_PACT, _random([2, 3, 8, 8]))
        for net in (_small_net(), convert_sync_batch_norm(_small_net()))
    )
    assert _train(synced, steps=2) == _train(plain, steps=2)
    for level in ("O1", "O2"):
        with rounding(BF16, level):
            assert np.isfinite(_train(plain, steps=2)).all()
        # The grid of the folded weight is that of evaluation, however products are rounded.
        with rounding(BF16, level):
            inside = deployed_weight(plain[0])[0]
        np.testing.assert_array_equal(inside, deployed_weight(plain[0])[0])


def test_two_processes_agree(tmp_path):
    first, second = run_on_two_ranks(ranks.__file__, tmp_path)
    whole = ranks.run(synced=True, rows=slice(None), world=1)
    local = []
    for key in first:
        if key.startswith("local") and key.endswith(("_mean", "_variance")) and ".frozen." not in key:
            local.append(not np.array_equal(first[key], second[key]))
        else:
            np.testing.assert_array_equal(first[key], second[key], err_msg=key)
    assert any(local)  # statistics of their own, and still the same weights on the same grid
    for key, expected in whole.items():
        error = np.abs(first[key] - expected).max() / max(1.0, np.abs(expected).max())
        assert error < 2e-5, f"{key}: {error}"
