"""Folding batch norm changes nothing that a model answers, and leaves alone what it cannot prove."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.models import build_model
from lowbit.nn import fold_batch_norm, prepare
from lowbit.recipe import make_recipe


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
