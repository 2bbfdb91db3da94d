"""quantize and calibrate, for a loop of one's own."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn

import lowbit
from lowbit.errors import LowbitError
from lowbit.kernels import why_missing
from lowbit.nn import find_quantizers, is_quantized, preparation_of
from lowbit.nn.convert import set_executor
from lowbit.nn.qt_autograd import BackwardQuantizers, RoundingRNG
from lowbit.recipe import load_recipe
from tests.support.own_networks import LOW, PTQ, QAT, TwoInputs, build, step


def quantized(net) -> list[str]:
    return [name for name, layer in net.named_sublayers() if is_quantized(layer)]


@pytest.mark.parametrize(
    "recipe",
    [QAT, load_recipe(QAT), {"weight_bits": 4, "activation_bits": 4}],
    ids=["path", "object", "dict"],
)
def test_a_recipe_in_any_form(recipe, images):
    net = build()
    weight = net.conv1.weight
    assert lowbit.quantize(net, recipe, data=images) is net
    assert {"conv1", "conv2"} <= set(quantized(net))
    assert net.conv1.weight is weight, "parameters stay, so that weights can be loaded before or after"


def test_what_is_no_recipe():
    with pytest.raises(LowbitError, match="a recipe is a name, a path, a dict"):
        lowbit.quantize(build(), 4)
    with pytest.raises(LowbitError, match="takes a network"):
        lowbit.quantize("resnet18", QAT)


def test_a_network_stays_as_it_was_when_the_data_are_wrong():
    net = build()
    for data in ([], [(1, 2)]):
        with pytest.raises(LowbitError):
            lowbit.quantize(net, QAT, data=data)
    assert not quantized(net)


@pytest.mark.parametrize("recipe", ["ptq_w8a8", {"weight_bits": 8}])
def test_data_that_the_network_does_not_take_change_nothing(recipe):
    net = paddle.nn.Sequential(paddle.nn.Conv2D(3, 2, 1), paddle.nn.Flatten())
    for shape, message in (
        ([4, 2, 8, 8], r'does not run on a batch of \[4, 2, 8, 8\], in layer "0"'),
        ([0, 3, 8, 8], "a batch has no samples"),
    ):
        with pytest.raises(LowbitError, match=message):
            lowbit.quantize(net, recipe, data=[np.zeros(shape, np.float32)])
        assert type(net[0]) is paddle.nn.Conv2D
    good, bad = (np.ones([2, channels, 8, 8], np.float32) for channels in (3, 2))
    with pytest.raises(LowbitError, match="does not run on a batch"):
        lowbit.quantize(net, recipe, data=[good, bad])


def test_qat_without_data_is_finished_by_calibrate(images, labels):
    net = lowbit.quantize(build(), QAT)
    with pytest.raises(LowbitError, match="calibrat"):
        net(paddle.to_tensor(images))
    done = lowbit.calibrate(net, (images, labels))
    assert (done.batches, done.samples) == (2, 40)
    assert done.calibrated and not lowbit.calibrate(net, images).calibrated
    losses = step(net, images, labels, steps=8)
    assert losses[-1] < losses[0]


def test_post_training_quantization_corrects_biases_once(images):
    net = lowbit.quantize(build(), PTQ, example=images[:2])
    assert lowbit.calibrate(net, [images], steps=1).biases_corrected == 3
    bias = net.conv1.bias.numpy().copy()
    assert lowbit.calibrate(net, [images]).biases_corrected == 0
    np.testing.assert_array_equal(net.conv1.bias.numpy(), bias)
    for quantizer in find_quantizers(net):
        quantizer.check_ready()


def test_several_inputs_and_a_dict_as_answer():
    rng = np.random.default_rng(0)
    data = [{"left": rng.standard_normal((8, 6)), "right": rng.standard_normal((8, 4)), "label": 0}] * 3
    net = lowbit.quantize(TwoInputs(), {"weight_bits": 8}, data=data)
    assert quantized(net) == ["left", "right", "head"]


def test_batch_norm_that_is_folded_in_training_takes_the_example(images):
    recipe = {
        "rules": [{"forward": {"weight": {"grid": "int8", "granularity": "N"}}}],
        "batch_norm": {"fold": "training"},
    }
    with pytest.raises(LowbitError, match="give inputs"):
        lowbit.quantize(build(), recipe)
    for given in ({"example": images[:2]}, {"data": images}):
        net = lowbit.quantize(build(), recipe, **given)
        assert len(preparation_of(net).batch_norms.pairs) == 2


def test_low_precision_layers_have_what_lowbit_train_gives_them(images, labels):
    """Executor, seeds and counters are the layers' own: nothing of a session is needed around a step."""
    net = lowbit.quantize(build(), LOW, seed=7)
    draws = [layer for layer in net.sublayers() if isinstance(layer, RoundingRNG)]
    assert draws and {draw.seed for draw in draws} == {7}
    parts = [layer for layer in net.sublayers() if isinstance(layer, BackwardQuantizers)]
    expected = "simulate" if why_missing() else "auto"
    assert {part.executor for part in parts} == {expected}
    step(net, images, labels, steps=3)
    assert {int(draw.step.item()) for draw in draws} == {3}
    net.eval()
    net(paddle.to_tensor(images))
    assert {int(draw.step.item()) for draw in draws} == {3}, "evaluation draws nothing"


def test_the_seed_chooses_the_roundings(images, labels):
    runs = [step(lowbit.quantize(build(), LOW, seed=seed), images, labels) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
def test_integers_and_their_simulation_train_alike(images, labels):
    nets = [lowbit.quantize(build(), LOW) for _ in range(2)]
    set_executor(nets[1], "simulate")
    for net in nets:
        step(net, images, labels, steps=2)
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)


def test_a_saved_network_goes_on_where_it_stopped(images, labels):
    """The counters of stochastic rounding are buffers."""
    whole = lowbit.quantize(build(), LOW)
    step(whole, images, labels, steps=2)
    resumed = lowbit.quantize(build(seed=5), LOW)
    resumed.set_state_dict({name: tensor.numpy() for name, tensor in whole.state_dict().items()})
    assert step(whole, images, labels, steps=2) == step(resumed, images, labels, steps=2)


def test_a_copy_keeps_the_original(images):
    net = build()
    lowbit.quantize(copy.deepcopy(net), QAT, data=images)
    assert not quantized(net)


def test_an_unprepared_network_cannot_be_calibrated(images):
    with pytest.raises(LowbitError, match=r"is not quantized: call lowbit\.quantize"):
        lowbit.calibrate(nn.Sequential(nn.Linear(2, 2)), images)
    with pytest.raises(LowbitError, match="steps=0"):
        lowbit.calibrate(lowbit.quantize(build(), QAT), images, steps=0)


def test_the_result_in_all_its_forms(images):
    done = lowbit.calibrate(lowbit.quantize(build(), PTQ, example=images[:2]), images)
    assert "40 samples" in str(done) and "40 samples" in done._repr_html_()
    assert done.to_dict()["samples"] == 40
    with pytest.raises(AttributeError):
        done.samples = 3
