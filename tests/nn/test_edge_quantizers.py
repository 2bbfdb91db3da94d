"""outputs: quantized: the same grids in training, evaluation, copies and checkpoints; shared by readers."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import (
    calibrate,
    deployed_edges,
    edge_quantizers,
    eval_mode,
    find_quantizers,
    preparation_of,
    prepare,
    quantization_mode,
    weights_in_bits,
)
from lowbit.nn.convert import quantizing_only, set_executor
from lowbit.nn.edge_quantizers import SharedQuantizer
from lowbit.nn.quantizer import Quantizer
from lowbit.recipe import Recipe, dump_recipe, make_recipe
from tests.support import networks

IMAGES = np.random.default_rng(0).standard_normal([4, 3, 8, 8], dtype=np.float32)


def recipe(scaling: str = "fixed", bits: int = 8, outputs: str = "quantized", **more: str) -> Recipe:
    input_ = {"grid": f"int{bits}", "sign": "auto", "scaling": scaling, **more}
    weight = {"grid": "int8-narrow", "granularity": "N", "scaling": "dynamic"}
    values = {"rules": [{"forward": {"input": input_, "weight": weight}}], "calibration": {"steps": 1}}
    return make_recipe(values | {"outputs": outputs})


def images() -> paddle.Tensor:
    return paddle.to_tensor(IMAGES)


def make(**options) -> nn.Layer:
    paddle.seed(0)
    net = nn.Sequential(nn.Conv2D(3, 4, 1), networks.ResidualBlock(), nn.AvgPool2D(2), nn.Conv2D(4, 5, 1))
    prepare(net, recipe(**options), images())
    calibrate(net, [images()])
    return net.eval()


def test_values_are_on_the_grid_and_readers_share_it():
    net = make()
    assert isinstance(net[1].first.input_quantizer, SharedQuantizer)
    assert net[1].first.input_quantizer.source is net[0].output_quantizer
    seen = {}
    for name in ("0", "1.bn", "1"):
        layer = dict(net.named_sublayers())[name]
        layer.register_forward_post_hook(lambda _l, _i, out, name=name: seen.update({name: out.numpy()}))
    with paddle.no_grad():
        net(images())
    for name, operand in deployed_edges(net).items():
        steps = seen[name] / operand.scale
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
        assert np.rint(steps).min() >= operand.lowest and np.rint(steps).max() <= operand.highest


@pytest.mark.parametrize(
    "options", [{}, {"scaling": "learned"}, {"scaling": "moving_average", "clip": "pact"}]
)
def test_training_quantizes_as_evaluation_does(options):
    net = make(**options)
    with paddle.no_grad():
        expected = net(images()).numpy()
    net.train()
    net[1].bn.eval()  # its statistics are the only other difference
    for quantizer in find_quantizers(net):
        if quantizer.spec.scaling.name == "moving_average":
            quantizer.eval()
    with paddle.enable_grad():
        found = net(images())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    found.sum().backward()
    assert all(
        p.grad is not None and bool(paddle.isfinite(p.grad).all()) for p in net.parameters() if p.trainable
    )


@pytest.mark.parametrize("replaced", ["class", "forward", "values_and_scale", "hook"])
def test_quantizers_of_ones_own_are_called_in_training_and_evaluation(replaced):
    class Less(Quantizer):
        def forward(self, x):
            return super().forward(x) * 0.47

    net = make()
    for quantizer in edge_quantizers(net).values():
        if replaced == "class":
            quantizer.__class__ = Less
        elif replaced == "hook":
            quantizer.register_forward_post_hook(lambda _quantizer, _given, y: y * 0.47)
        elif replaced == "forward":
            quantizer.forward = lambda x, plain=quantizer.forward: plain(x) * 0.47
        else:
            plain = quantizer.values_and_scale
            quantizer.values_and_scale = lambda x, plain=plain: (plain(x)[0] * 0.47, plain(x)[1])
    answers = {}
    for executor in ("auto", "simulate"):
        set_executor(net, executor)
        net.train()
        for layer in net.sublayers():
            if isinstance(layer, Quantizer | nn.BatchNorm2D):
                layer.eval()
        answers[executor, "training"] = net(images()).numpy()
        net.eval()
        with paddle.no_grad():
            answers[executor, "evaluation"] = net(images()).numpy()
    expected = answers.pop(("simulate", "training"))
    for found in answers.values():
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"scaling": "moving_average", "clip": "pact"}])
@pytest.mark.parametrize("how", ["set_value", "dlpack", "add_"])
def test_values_that_are_overwritten_between_layers_are_rounded(how, options):
    other = 5 * np.random.default_rng(1).standard_normal([4, 4, 8, 8], dtype=np.float32)

    def overwrite(_layer, _given, output):
        if how == "set_value":
            output.set_value(other)
        elif how == "dlpack":
            np.from_dlpack(output.detach())[...] = other
        else:
            with paddle.no_grad():
                output.add_(paddle.to_tensor(other) - output)

    answers, gradients = {}, {}
    net = make(**options)
    net[0].register_forward_post_hook(overwrite)
    for executor in ("auto", "simulate"):
        set_executor(net, executor)
        net.train()
        for layer in net.sublayers():
            if isinstance(layer, Quantizer | nn.BatchNorm2D):
                layer.eval()
        net[1].first.input_quantizer.train()  # observes nothing, and takes the way of training
        found = net(images())
        found.sum().backward()
        answers[executor, "training"] = found.numpy()
        gradients[executor] = [p.grad.numpy() for p in (net[0].weight, net[1].first.weight)]
        net.clear_gradients()
        net.eval()
        with paddle.no_grad():
            answers[executor, "evaluation"] = net(images()).numpy()
    expected = answers.pop(("auto", "evaluation"))
    for found in answers.values():
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    for one, another in zip(*gradients.values(), strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-4, atol=1e-4)


def test_a_copy_has_its_own_quantizers_and_a_checkpoint_all_of_them():
    net = make()
    other = copy.deepcopy(net)
    assert other[1].first.input_quantizer.source is other[0].output_quantizer is not net[0].output_quantizer
    again = nn.Sequential(nn.Conv2D(3, 4, 1), networks.ResidualBlock(), nn.AvgPool2D(2), nn.Conv2D(4, 5, 1))
    prepare(again, recipe(), images())
    missing, unexpected = again.set_state_dict(net.state_dict())
    assert not missing and not unexpected
    with eval_mode(net), eval_mode(other), eval_mode(again):
        answers = [one(images()).numpy() for one in (net, other, again)]
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])


def test_names_of_parameters_stay():
    before = nn.Sequential(
        nn.Conv2D(3, 4, 1), networks.ResidualBlock(), nn.AvgPool2D(2), nn.Conv2D(4, 5, 1)
    ).state_dict()
    more = set(make().state_dict()) - set(before)
    assert set(before) <= set(make().state_dict()) and all("quantizer" in name for name in more)


def test_fewer_bits_between_layers_stay_8():
    net = make(bits=4)
    assert str(net[1].output_quantizer.spec.grid) == "int8"
    assert not isinstance(net[1].first.input_quantizer, SharedQuantizer)  # rounds to its 4 bits itself
    assert net[1].first.input_quantizer.spec.grid.bits == 4


def test_full_precision_leaves_edges_alone():
    net, plain = make(), make(outputs="full")
    assert not edge_quantizers(plain)
    with quantization_mode(net, "full"), quantization_mode(plain, "full"):
        np.testing.assert_array_equal(net(images()).numpy(), plain(images()).numpy())
        with quantization_mode(net, "weights"):
            pass
        np.testing.assert_array_equal(net(images()).numpy(), plain(images()).numpy())
    with quantizing_only(net, ["1.first"]), quantizing_only(plain, ["1.first"]):
        found, expected = net(images()).numpy(), plain(images()).numpy()
    assert np.abs(found - expected).max() <= 0.05 * np.abs(expected).max()


def test_a_tensor_that_comes_another_way_is_rounded_too():
    net = make()
    shared = net[1].first.input_quantizer
    x = paddle.randn([2, 4, 8, 8])
    scale = float(shared.scale())
    values = shared(x).numpy() / scale
    np.testing.assert_allclose(values, np.rint(values), atol=1e-3)
    np.testing.assert_array_equal(shared(x).numpy(), net[0].output_quantizer(x).numpy())


def test_a_recipe_without_the_key_is_as_before():
    old = make_recipe({"rules": [{"forward": {"weight": {"grid": "int8"}}}]})
    assert old.outputs == "full" and "outputs" not in dump_recipe(old)
    assert "outputs: quantized" in dump_recipe(recipe())
    assert make_recipe({"outputs": "quantized", "rules": old.rules}).outputs == "quantized"


def test_what_cannot_be_is_said():
    net = nn.Sequential(nn.Conv2D(3, 4, 1), nn.Hardswish(), nn.Conv2D(4, 2, 1))
    with pytest.raises(LowbitError, match="example=x"):
        prepare(net, recipe())
    dynamic = make_recipe(
        {
            "rules": [{"forward": {"input": {"grid": "int8"}, "weight": {"grid": "int8"}}}],
            "outputs": "quantized",
        }
    )
    with pytest.raises(LowbitError, match="known beforehand"):
        prepare(net, dynamic, images())
    assert not edge_quantizers(net)  # nothing was changed


def test_what_was_done_is_told():
    assert "3 of 3 tensors between layers are quantized, too" in str(preparation_of(make()))


# A head that only training reads has no scales after calibration, and to_static inside a model is not for
# training with quantizers: with or without `outputs: quantized`.
APART = (networks.AuxiliaryHead, networks.Static, networks.StaticTail)


@pytest.mark.parametrize("kind", [kind for kind in networks.NETWORKS if kind not in APART])
def test_networks_built_to_break_it_train_and_answer(kind):
    paddle.seed(0)
    net = kind()
    x, labels = paddle.randn([4, 3, 16, 16]), paddle.to_tensor([0, 1, 2, 3])
    try:
        prepare(net, recipe(scaling="moving_average"), x)
    except LowbitError as error:  # Paddle translates no zip(…, strict=True) and no code of some of these
        assert "as a program" in str(error) and not edge_quantizers(net)
        return
    calibrate(net, [x])
    net.train()
    assert np.isfinite(net.backward_pass(x, labels))
    with eval_mode(net):
        first, again = net(x), copy.deepcopy(net)(x)
    for one, other in zip(paddle.utils.flatten(first), paddle.utils.flatten(again), strict=True):
        assert np.isfinite(one.numpy()).all()
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_weights_in_fewer_bits_for_a_while():
    net = make()
    with eval_mode(net):
        before = net(images()).numpy()
        with weights_in_bits(net, 7) as layers:
            inside = net(images()).numpy()
        assert layers == 4
        np.testing.assert_array_equal(net(images()).numpy(), before)
        with weights_in_bits(net, 8) as layers:
            np.testing.assert_array_equal(net(images()).numpy(), before)
        assert layers == 0
    assert 0 < np.abs(inside - before).max() < 0.1 * np.abs(before).max()
    with pytest.raises(LowbitError, match="2 to 8"), weights_in_bits(net, 9):
        pass
