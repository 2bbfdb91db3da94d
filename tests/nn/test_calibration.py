"""Calibration with gradients: the observer `sensitivity`."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import calibrate, prepare
from lowbit.nn.calibration import correct_biases, give_bias
from lowbit.recipe import make_recipe

RULE = {"forward": {"input": {"grid": "int8", "sign": "auto", "scaling": "fixed", "observer": "sensitivity"}}}
RECIPE = {"rules": [RULE], "calibration": {"steps": 2}}


class Skip(nn.Layer):
    """A layer that reads one of two features, beside a connection that reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.linear.weight.set_value(paddle.to_tensor([[1.0], [0.0]]))

    def forward(self, x):
        return paddle.concat([self.linear(x), x], axis=1)


def values() -> paddle.Tensor:
    """A feature up to 1, and one of 100, which the layer does not read."""
    x = np.full([64, 2], 100, np.float32)
    x[:, 0] = np.linspace(0, 1, 64)
    return paddle.to_tensor(x)


def range_of(model: nn.Layer) -> float:
    return model.linear.input_quantizer.kept.range.item()


def test_what_the_layer_does_not_read_is_clipped():
    model = prepare(Skip(), make_recipe(RECIPE))
    assert calibrate(model, [values(), [values()]]) == 2
    assert 0.9 < range_of(model) < 2
    assert str(model.linear.input_quantizer.grid()) == "uint8"
    plain = make_recipe(
        {"rules": [{"forward": {"input": {"grid": "int8", "scaling": "fixed"}}}]}
        | {"calibration": {"steps": 1}}
    )
    other = prepare(Skip(), plain)
    calibrate(other, [values()])
    assert range_of(other) == 100


def test_the_model_and_its_gradients_stay():
    model = prepare(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), make_recipe(RECIPE))
    model[0].bias.stop_gradient = True
    x = paddle.randn([8, 3])
    model[2].weight.sum().backward()
    before = model[2].weight.grad.numpy()
    calibrate(model, [x])
    np.testing.assert_array_equal(model[2].weight.grad.numpy(), before)
    assert model[0].weight.grad is None and x.stop_gradient
    assert [p.stop_gradient for p in model.parameters()] == [False, True, False, False]


def test_it_is_the_same_every_time():
    def found() -> list[float]:
        paddle.seed(0)
        model = prepare(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), make_recipe(RECIPE))
        calibrate(model, [paddle.to_tensor(np.random.default_rng(0).normal(size=[32, 3]).astype("float32"))])
        return [layer.input_quantizer.kept.range.item() for layer in (model[0], model[2])]

    assert found() == found()


def test_nan_in_a_batch_and_answers_without_gradients():
    model = prepare(Skip(), make_recipe(RECIPE))
    calibrate(model, [paddle.full([4, 2], float("nan")), values()])
    assert range_of(model) < 2
    blind = prepare(Skip(), make_recipe(RECIPE))
    blind.linear.register_forward_post_hook(lambda layer, given, out: out.detach())
    calibrate(blind, [values()])
    assert range_of(blind) == 100  # nothing is known to be unimportant


@pytest.mark.parametrize(
    "forward",
    [
        {"weight": {"grid": "int8", "scaling": "fixed", "observer": "sensitivity"}},
        {"input": {"grid": "int8", "observer": "sensitivity"}},
        {"input": {"grid": "int8", "scaling": "learned", "observer": "sensitivity"}},
        {"input": {"grid": "int8", "scaling": "fixed", "granularity": "C", "observer": "sensitivity"}},
    ],
)
def test_where_it_cannot_be(forward):
    with pytest.raises(LowbitError, match="observer sensitivity is for the inputs"):
        prepare(Skip(), make_recipe({"rules": [{"forward": forward}], "calibration": {"steps": 1}}))


def recipe(bits: int = 3, **more):
    words = {"grid": f"int{bits}", "granularity": "N", "scaling": "fixed"}
    inputs = {"grid": "int8", "sign": "auto", "scaling": "fixed"}
    rule = {"forward": {"input": inputs, "weight": words}}
    return make_recipe({"rules": [rule], "calibration": {"steps": 1, "correct_bias": True}} | more)


def images(seed: int = 0) -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(seed).random([16, 4, 6, 6], dtype=np.float32))


LAYERS = {
    "depthwise": lambda: nn.Conv2D(4, 4, 3, padding=1, groups=4, bias_attr=False),
    "with a bias": lambda: nn.Conv2D(4, 5, 1),
    "channels last": lambda: nn.Conv2D(6, 5, 1, data_format="NHWC", bias_attr=False),
    "transposed": lambda: nn.Conv2DTranspose(4, 6, 2, groups=2, bias_attr=False),
    "linear": lambda: nn.Linear(6, 3, bias_attr=False),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_the_mean_of_each_output_is_that_of_the_unrounded_weight(kind):
    paddle.seed(0)
    layer, x = LAYERS[kind](), images()
    model = nn.Sequential(layer).eval()
    prepare(model, recipe())
    calibrate(model, [x])
    with paddle.no_grad():
        xq = layer.input_quantizer(x)
        expected = layer.product(xq, layer.weight, layer.bias).numpy()
        before = model(x).numpy()
        assert correct_biases(model, [x[:8], [x[8:]]]) == 1
        after = model(x).numpy()
    channels = -1 if kind in ("channels last", "linear") else 1
    axes = tuple(axis for axis in range(4) if axis != channels % 4)
    shift = np.abs((before - expected).mean(axes)).max()
    assert shift > 1e-3
    np.testing.assert_allclose(after.mean(axes), expected.mean(axes), rtol=0, atol=1e-3 * shift)


def test_clipped_inputs_do_not_shift_the_bias():
    """The mean of what clipping takes away would be put on all values that were not clipped."""
    layer = nn.Linear(1, 1, bias_attr=False)
    layer.weight.set_value(paddle.ones([1, 1]))  # on the grid: nothing to correct
    model = prepare(nn.Sequential(layer), recipe(8))
    calibrate(model, [paddle.ones([8, 1])])
    correct_biases(model, [paddle.to_tensor([[1.0]] * 7 + [[1000.0]])])
    assert abs(layer.bias.item()) < 1e-6


def test_answers_come_closer():
    paddle.seed(1)
    net = nn.Sequential(*(nn.Sequential(nn.Conv2D(4, 4, 3, groups=4), nn.ReLU()) for _ in range(2)))
    x, other = images(0), images(1)
    with paddle.no_grad():
        exact = net(other).numpy()
        prepare(net, recipe(4)).eval()
        calibrate(net, [x])
        before = np.square(net(other).numpy() - exact).mean()
        correct_biases(net, [x])
        assert np.square(net(other).numpy() - exact).mean() < 0.7 * before


def test_state_loads_into_a_model_prepared_alike():
    net, twin = (prepare(nn.Sequential(LAYERS["depthwise"]()), recipe()) for _ in range(2))
    calibrate(net, [images()])
    correct_biases(net, [images()])
    twin.set_state_dict(net.state_dict())
    with paddle.no_grad():
        np.testing.assert_array_equal(net.eval()(images()).numpy(), twin.eval()(images()).numpy())


def test_a_bias_that_is_there_stays():
    layer = nn.Linear(2, 3)
    bias = layer.bias
    give_bias(layer)
    assert layer.bias is bias


def test_without_a_bias_or_with_a_folded_batch_norm():
    net = prepare(nn.Sequential(nn.Linear(2, 2, bias_attr=False)), make_recipe({"weight_bits": 8}))
    with pytest.raises(LowbitError, match="1 quantized layers have no bias to correct: prepare"):
        correct_biases(net, [paddle.ones([1, 2])])
    with pytest.raises(LowbitError, match=r"correct_bias goes with batch_norm\.fold: calibration or export"):
        prepare(nn.Sequential(nn.Linear(2, 2)), recipe(batch_norm={"fold": "training"}), paddle.ones([1, 2]))
    with pytest.raises(LowbitError, match="correct_bias needs batches"):
        make_recipe({"rules": [{"skip": True}], "calibration": {"correct_bias": True}})


def test_with_outputs_quantized_biases_are_on_the_grid_of_the_sums():
    """So that bias and batch norm together are whole steps of input scale times weight scale."""
    paddle.seed(0)
    net = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.Hardswish(), nn.Conv2D(4, 2, 1))
    net[1]._mean.set_value(paddle.to_tensor([0.5, -1.0, 0.0, 2.0]))
    net[1]._variance.set_value(paddle.to_tensor([0.3, 2.0, 1.0, 0.1]))
    net[1].weight.set_value(paddle.to_tensor([1.0, -0.5, 0.0, 2.0]))  # one that hides its channel
    values = {
        "rules": [
            {
                "forward": {
                    "input": {"grid": "int8", "sign": "auto", "scaling": "fixed"},
                    "weight": {"grid": "int7-narrow", "granularity": "N"},
                }
            }
        ],
        "calibration": {"steps": 1, "correct_bias": True},
        "outputs": "quantized",
    }
    x = paddle.randn([4, 3, 8, 8])
    prepare(net, make_recipe(values), x)
    calibrate(net, [x])
    correct_biases(net, [x])
    for layer, norm in ((net[0], net[1]), (net[3], None)):
        step = float(layer.input_quantizer.scale()) * layer.weight_quantizer.integers(layer.weight)[1].numpy()
        bias, gain = layer.bias.numpy().astype(np.float64), 1.0
        if norm is not None:
            gain = norm.weight.numpy() / np.sqrt(norm._variance.numpy() + norm._epsilon)
            bias = (bias - norm._mean.numpy()) * gain + norm.bias.numpy()
        shown = np.abs(gain * np.ones(len(bias))) > 0
        steps = (
            (bias[shown] / (step.reshape([-1]) * gain)[shown])
            if norm is not None
            else bias / step.reshape([-1])
        )
        np.testing.assert_allclose(steps, np.rint(steps), atol=2e-2)
        assert np.abs(steps).max() > 1
