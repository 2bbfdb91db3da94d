"""Pairs of a layer and its batch norm are found by what the model does, whatever its values are."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.models import build_model
from lowbit.nn import calibrate, fold_batch_norm, preparation_of, prepare, quantization_mode
from lowbit.nn.bn_folding import absorb_batch_norms, find_foldable
from lowbit.recipe import make_recipe


class Net(nn.Layer):
    """A convolution, its batch norm, and something that may look at what stands between them."""

    def __init__(self, between, *, shape=(4, 4, 1)):
        super().__init__()
        self.conv, self.norm = nn.Conv2D(*shape), nn.BatchNorm2D(4)
        self.between = between

    def forward(self, x):
        return self.between(self, x)


def _used_elsewhere(net, x):
    y = net.conv(x)
    return net.norm(y) + y


def _changed_in_place(net, x):
    y = net.conv(x)
    y.add_(paddle.ones([1]))
    return net.norm(y)


def _used_in_training_only(net, x):
    y = net.conv(x)
    z = net.norm(y)
    return z + y if net.training else z


@pytest.mark.parametrize("between", [_used_elsewhere, _changed_in_place])
def test_a_new_models_batch_norm_hides_nothing(between):
    """Its gain is 1 and its mean 0: a wrong fold would not be seen in the answers."""
    model = Net(between)
    found = find_foldable(model, paddle.randn([2, 4, 3, 3]))
    assert not found.pairs and found.left_alone == {"norm": "the output of conv is used elsewhere, too"}


@pytest.mark.parametrize("between", [lambda net, x: net.norm(net.conv(x)), _used_in_training_only])
def test_pairs(between):
    model = Net(between)
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    model.train()
    found = find_foldable(model, paddle.randn([2, 4, 3, 3]))
    assert found.pairs == [("conv", "norm")] and not found.left_alone
    assert model.training and type(model.norm) is nn.BatchNorm2D
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    assert not model.conv._forward_post_hooks and not model.norm._forward_pre_hooks


def test_a_dropout_that_draws_in_evaluation_does_not_disturb():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1D(4), nn.Linear(4, 4))
    model[2].register_forward_post_hook(lambda layer, given, out: out * paddle.rand([1]))
    assert find_foldable(model, paddle.randn([2, 4])).pairs == [("0", "1")]


class Doubled(nn.BatchNorm2D):
    def forward(self, x):
        return super().forward(x) * 2


def test_reasons():
    x = paddle.randn([2, 4, 3, 3])
    hooked = nn.Conv2D(4, 4, 1)
    hooked.register_forward_post_hook(lambda layer, given, out: out * 2)
    cases = {
        "hooks": nn.Sequential(hooked, nn.BatchNorm2D(4)),
        "its own forward": nn.Sequential(nn.Conv2D(4, 4, 1), Doubled(4)),
        "statistics of the batch": nn.Sequential(
            nn.Conv2D(4, 4, 1), nn.BatchNorm2D(4, use_global_stats=False)
        ),
        "old paddle.nn.BatchNorm": nn.Sequential(nn.Conv2D(4, 4, 1), nn.BatchNorm(4)),
        "another axis": nn.Sequential(nn.Linear(3, 3), nn.BatchNorm2D(4)),
    }
    for why, model in cases.items():
        found = find_foldable(model, x)
        assert not found.pairs and why in found.left_alone["1"], found


def test_bad_input():
    model = nn.Sequential(nn.Conv2D(4, 4, 1), nn.BatchNorm2D(4))
    with pytest.raises(LowbitError, match=r"does not run on the example inputs \[2, 3, 3, 3\].*image_shape"):
        find_foldable(model, paddle.randn([2, 3, 3, 3]))
    with pytest.raises(LowbitError, match="NaN or Inf"):
        find_foldable(model, paddle.full([2, 4, 3, 3], float("nan")))
    assert not model[0]._forward_post_hooks


def _settled(model, *shapes):
    """The model with statistics and weights of batch norm that are no longer 0 and 1, in evaluation."""
    rng = np.random.default_rng(0)
    for layer in model.sublayers():
        if isinstance(layer, nn.layer.norm._BatchNormBase):
            for tensor, low, high in (
                *((layer._mean, -0.5, 0.5), (layer._variance, 0.5, 2.0)),
                *((layer.weight, 0.5, 1.5), (layer.bias, -0.5, 0.5)),
            ):
                if tensor is not None:
                    tensor.set_value(rng.uniform(low, high, tensor.shape).astype(np.float32))
    model.eval()
    return model, [paddle.to_tensor(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


def _check(model, inputs, pairs):
    before = model(*inputs).numpy()
    folded = fold_batch_norm(model, *inputs)
    assert len(folded.pairs) == pairs
    np.testing.assert_allclose(model(*inputs).numpy(), before, rtol=0, atol=1e-5 * np.abs(before).max())
    return folded


@pytest.mark.parametrize(("name", "size"), [("resnet20", 16), ("mobilenet_v3_small", 32), ("resnet18", 32)])
def test_models_answer_the_same_without_batch_norm(name, size):
    model, inputs = _settled(build_model(name, num_classes=10), [2, 3, size, size])
    norms = sum(isinstance(layer, nn.BatchNorm2D) for layer in model.sublayers())
    folded = _check(model, inputs, norms)
    assert not folded.left_alone
    assert not any(isinstance(layer, nn.BatchNorm2D) for layer in model.sublayers())
    other = paddle.randn([3, 3, size, size])
    assert np.isfinite(model(other).numpy()).all()


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ([nn.Linear(4, 6), nn.BatchNorm1D(6)], [5, 4]),
        ([nn.Linear(4, 6, bias_attr=False), nn.BatchNorm1D(6)], [5, 4]),
        ([nn.Conv2D(4, 8, 3, groups=4), nn.BatchNorm2D(8, weight_attr=False, bias_attr=False)], [2, 4, 5, 5]),
        (
            [nn.Conv2D(4, 8, 3, data_format="NHWC"), nn.BatchNorm2D(8, data_format="NHWC")],
            [2, 5, 5, 4],
        ),
        ([nn.Conv2DTranspose(4, 6, 3, stride=2), nn.BatchNorm2D(6)], [2, 4, 5, 5]),
        ([nn.Conv2DTranspose(4, 6, 3, groups=2, bias_attr=False), nn.BatchNorm2D(6)], [2, 4, 5, 5]),
    ],
)
def test_kinds_of_layers(layers, shape):
    _check(*_settled(nn.Sequential(*layers), shape), pairs=1)


class UsedTwice(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2D(3, 3, 1), nn.BatchNorm2D(3)
        self.good, self.good_norm = nn.Conv2D(3, 3, 1), nn.BatchNorm2D(3)

    def forward(self, x):
        x = self.good_norm(self.good(x))
        y = self.conv(x)
        return self.norm(y) + y


def test_an_output_that_is_used_elsewhere_is_left_alone():
    model, inputs = _settled(UsedTwice(), [2, 3, 4, 4])
    weight = model.conv.weight.numpy()
    folded = _check(model, inputs, pairs=1)
    assert folded.pairs == [("good", "good_norm")]
    assert "used elsewhere" in folded.left_alone["norm"]
    np.testing.assert_array_equal(model.conv.weight.numpy(), weight)
    assert isinstance(model.norm, nn.BatchNorm2D)


def test_what_cannot_be_proved_is_left_alone_with_the_reason():
    conv, norm = nn.Conv2D(3, 3, 1), nn.BatchNorm2D(3)
    tied = nn.Conv2D(3, 3, 1)
    tied.weight = conv.weight
    cases = {
        "called 2 times": nn.Sequential(nn.Conv2D(3, 3, 1), norm, nn.Conv2D(3, 3, 1), norm),
        "not the output of": nn.Sequential(nn.Conv2D(3, 3, 1), nn.ReLU(), nn.BatchNorm2D(3)),
        "shares its weight": nn.Sequential(conv, nn.BatchNorm2D(3), tied),
        "another batch norm": nn.Sequential(nn.BatchNorm2D(3), nn.BatchNorm2D(3)),
        "called several times": nn.Sequential(
            shared := nn.Conv2D(3, 3, 1), nn.BatchNorm2D(3), nn.ReLU(), shared
        ),
        "quantized already": prepare(
            nn.Sequential(nn.Conv2D(3, 3, 1), nn.BatchNorm2D(3)),
            make_recipe({"activation_quantize_type": "abs_max"}),
        ),
    }
    for why, model in cases.items():
        model, inputs = _settled(model, [2, 3, 4, 4])
        folded = _check(model, inputs, pairs=0)
        assert any(why in reason for reason in folded.left_alone.values()), (why, folded)


def test_modes_come_back():
    model, inputs = _settled(build_model("resnet20", num_classes=10), [2, 3, 16, 16])
    model.train()
    fold_batch_norm(model, *inputs)
    assert all(layer.training for layer in model.sublayers(include_self=True))
    model(*inputs).sum().backward()
    assert model.conv1.bias.grad is not None


# Folding at calibration.


def _prepared_to_absorb(net: nn.Layer, x: Tensor) -> nn.Layer:
    weight = {"grid": "int8-narrow", "granularity": "N"}
    rules = [{"forward": {"input": {"grid": "int8", "scaling": "fixed"}, "weight": weight}}]
    values = {"rules": rules, "calibration": {"steps": 1}, "batch_norm": {"fold": "calibration"}}
    return prepare(net, make_recipe(values), x)


def _with_usual_statistics(norm: nn.Layer) -> None:
    rng = np.random.default_rng(3)
    for part, low, high in (
        (norm.weight, -2, 2), (norm.bias, -1, 1), (norm._mean, -1, 1), (norm._variance, 0.1, 4)
    ):  # fmt: skip
        part.set_value(paddle.to_tensor(rng.uniform(low, high, part.shape).astype(np.float32)))


def test_calibration_folds_for_good():
    paddle.seed(0)
    net = nn.Sequential(nn.Conv2D(3, 8, 3), nn.BatchNorm2D(8), nn.ReLU(), nn.Conv2D(8, 4, 1)).eval()
    _with_usual_statistics(net[1])
    x = paddle.randn([4, 3, 9, 9])
    names, before = set(net.state_dict()), net(x).numpy()
    _prepared_to_absorb(net, x)
    assert preparation_of(net).batch_norms.pairs == [("0", "1")]
    assert "1 of 1 batch norms are folded at calibration" in str(preparation_of(net))
    calibrate(net, [x])
    with quantization_mode(net, "full"):
        np.testing.assert_allclose(net(x).numpy(), before, rtol=1e-4, atol=1e-5)
    y = paddle.randn([2, 8, 5, 5])
    np.testing.assert_array_equal(net[1](y).numpy(), y.numpy())  # not even a last bit changes
    assert names <= set(net.state_dict())
    state = {name: value.numpy() for name, value in net.state_dict().items()}
    assert absorb_batch_norms(net) == 1
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[name], err_msg=name)
    net.train()
    np.testing.assert_array_equal(net[1](y).numpy(), y.numpy())  # in training, too


def test_a_network_folded_at_calibration_comes_back_from_its_state():
    x = paddle.randn([4, 3, 9, 9])
    nets = []
    for seed in (0, 1):
        paddle.seed(seed)
        nets.append(nn.Sequential(nn.Conv2D(3, 8, 3), nn.BatchNorm2D(8), nn.ReLU(), nn.Conv2D(8, 4, 1)))
        _with_usual_statistics(nets[-1][1])
        _prepared_to_absorb(nets[-1].eval(), x)
    calibrate(nets[0], [x])
    nets[1].set_state_dict(nets[0].state_dict())
    np.testing.assert_array_equal(nets[1](x).numpy(), nets[0](x).numpy())
    calibrate(nets[1], [x])
    np.testing.assert_array_equal(nets[1](x).numpy(), nets[0](x).numpy())
