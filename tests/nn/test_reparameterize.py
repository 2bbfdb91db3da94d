"""Blocks with branches become one convolution where they are deployed, and give the same answers."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

import lowbit
from lowbit.models import build_model, ppcls_is_installed
from lowbit.nn import has_quantized_layers, prepare, reparameterize, reparameterized
from lowbit.recipe import load_recipe
from tests.support.onnx_models import answers, normal


class Branches(nn.Layer):
    """Two convolutions whose sum is deployed as one."""

    def __init__(self, *, wrong: bool = False) -> None:
        super().__init__()
        self.wrong, self.is_repped = wrong, False
        self.rbr_dense = nn.Conv2D(4, 4, 3, padding=1)
        self.rbr_1x1 = nn.Conv2D(4, 4, 1)

    def forward(self, x):
        return self.merged(x) if self.is_repped else self.rbr_dense(x) + self.rbr_1x1(x)

    def re_parameterize(self):
        self.merged = nn.Conv2D(4, 4, 3, padding=1)
        wide = nn.functional.pad(self.rbr_1x1.weight, [1, 1, 1, 1])
        self.merged.weight.set_value(self.rbr_dense.weight + (0 if self.wrong else wide))
        self.merged.bias.set_value(self.rbr_dense.bias + self.rbr_1x1.bias)
        self.is_repped = True


def net(*, wrong: bool = False) -> nn.Layer:
    paddle.seed(0)
    return nn.Sequential(Branches(), nn.ReLU(), Branches(wrong=wrong), nn.AdaptiveAvgPool2D(1), nn.Flatten())


def layer_names(model: nn.Layer) -> list[str]:
    return [name for name, layer in model.named_sublayers() if isinstance(layer, nn.Conv2D)]


def test_merging_keeps_the_answers():
    model, images = net(), normal(2, 4, 8, 8)
    before = answers(model, images)
    assert reparameterize(model) == ["0", "2"]
    assert layer_names(model) == ["0.merged", "2.merged"]
    np.testing.assert_allclose(answers(model, images), before, atol=1e-5)
    assert reparameterize(model) == []


def test_a_block_that_would_answer_differently_keeps_its_branches():
    model = net(wrong=True)
    assert reparameterize(model) == ["0"]
    assert layer_names(model) == ["0.merged", "2.rbr_dense", "2.rbr_1x1"]


def test_the_copy_leaves_the_model_alone():
    model = net()
    names = layer_names(model)
    assert layer_names(reparameterized(model)) == ["0.merged", "2.merged"]
    assert layer_names(model) == names


@pytest.mark.parametrize(("recipe", "merged"), [("qat_w8a8", True), ("qt_w4a4g4", False)])
def test_quantized_as_it_is_deployed(recipe, merged):
    """Low-precision training trains the branches, with batch norm in each."""
    model = net()
    prepared = prepare(model, load_recipe(recipe), paddle.to_tensor(normal(2, 4, 8, 8)))
    assert has_quantized_layers(prepared)
    assert (layer_names(model)[0] == "0.merged") == merged


def test_exports_have_the_merged_convolutions(tmp_path):
    import onnx

    model, images = net(), normal(3, 4, 8, 8)
    lowbit.export(model, tmp_path, example=images)
    assert layer_names(model)[0] == "0.rbr_dense"
    file = onnx.load(str(tmp_path / "inference.onnx"))
    assert [node.op_type for node in file.graph.node].count("Conv") == 2
    assert lowbit.verify(model, tmp_path, [images], latency=False, layers=True).passed


needs_ppcls = pytest.mark.skipif(
    not ppcls_is_installed(), reason="PaddleClas's package ppcls is not installed"
)


@needs_ppcls
def test_a_block_that_forgets_its_attention_keeps_its_branches():
    """PaddleClas's RepVGG_D2se: merged, it leaves out squeeze-and-excite."""
    block = type(build_model("RepVGG_A0", 4).stage0)(16, 16, 3, padding=1, use_se=True)
    assert reparameterize(nn.Sequential(block)) == []


@needs_ppcls
@pytest.mark.parametrize("name", ["RepVGG_A0", "PPLCNetV2_small"])
def test_paddleclas(name):
    paddle.seed(0)
    model, images = build_model(name, 4), normal(2, 3, 64, 64)
    model.train()
    for seed in range(2):  # statistics that are not those of the start
        model(paddle.to_tensor(normal(4, 3, 64, 64, seed=seed)))
    before = answers(model, images)
    branches = len(model.state_dict())
    assert reparameterize(model)
    np.testing.assert_allclose(answers(model, images), before, atol=2e-4 * max(1, np.abs(before).max()))
    assert len(model.state_dict()) < branches
