"""Which layer costs most, from Python."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

import lowbit
from lowbit.api.analysis import quantize_as
from lowbit.errors import LowbitError
from lowbit.nn import find_quantizers
from lowbit.training.loop import train
from lowbit.training.trained_model import open_checkpoint
from tests.support.own_networks import LOW, QAT, TwoInputs, build, step
from tests.support.runs import tiny_config


def test_the_layer_that_is_quantized_worst_comes_first(images, labels):
    rules = [
        {"forward": {"weight": {"grid": "int8", "granularity": "N"}, "input": {"grid": "int8"}}},
        {"match": {"name": "conv2"}, "forward": {"weight": {"grid": "int2"}}},
    ]
    net = lowbit.quantize(build(), {"rules": rules})
    step(net, images, labels)
    found = lowbit.analyze(net, images, budget="4bits")
    worst = max(found.layers, key=lambda layer: layer.divergence)
    assert worst.name == "conv2" and worst.bits == "W2A8"
    assert found.samples == 40 and found.labels == "network" and found.full["top1"] == 1
    proposed = {layer.name: layer.proposed_bits for layer in found.layers}
    assert proposed["conv2"] == max(proposed.values())
    again = lowbit.quantize(build(), found.recipe)
    assert again.conv2.plan.forward.weight.grid.bits == proposed["conv2"]


def test_labels_of_the_data(images, labels):
    net = lowbit.quantize(build(), QAT, data=images)
    found = lowbit.analyze(net, (images, labels))
    assert found.labels == "data" and found.recipe is None
    net.eval()
    import paddle

    with paddle.no_grad():
        right = (net(paddle.to_tensor(images)).numpy().argmax(1) == labels).mean()
    assert found.quantized["top1"] == pytest.approx(right)


def test_gradients_of_low_precision_training(images, labels):
    net = lowbit.quantize(build(), LOW)
    step(net, images, labels)
    found = lowbit.analyze(net, (images, labels))
    assert [layer.name for layer in found.layers] == ["conv2"]
    assert found.layers[0].gradient_sqnr > 5
    assert "G dB" in str(found)


def test_several_inputs():
    rng = np.random.default_rng(0)

    class Logits(TwoInputs):
        def forward(self, left, right):
            return super().forward(left, right)["logits"], left

    data = [(rng.standard_normal((8, 6)), rng.standard_normal((8, 4)), np.zeros(8, int)) for _ in range(3)]
    net = lowbit.quantize(Logits(), {"weight_bits": 4}, data=data)
    assert len(lowbit.analyze(net, data).layers) == 3
    features = lowbit.quantize(TwoInputs(), {"weight_bits": 4}, data=data)
    assert lowbit.analyze(features, data).samples == 24, "the first output, by name, has two axes as well"


def test_what_cannot_be_analyzed(images):
    with pytest.raises(LowbitError, match="is not quantized"):
        lowbit.analyze(build(), images)
    net = lowbit.quantize(build(), QAT, data=images)
    with pytest.raises(LowbitError, match="budget"):
        lowbit.analyze(net, images, budget="small")
    with pytest.raises(LowbitError, match="the data have the label 99, but the network has"):
        lowbit.analyze(net, [(images, np.full(len(images), 99))])


@pytest.mark.parametrize("steps", [0, 2])
def test_every_quantizer_is_ready_afterwards(tmp_path, steps):
    sign = {"sign": "auto", "scaling": "fixed"} if steps else {}
    rule = {"forward": {"input": {"grid": "int8", **sign}, "weight": {"grid": "int8"}}}
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({"rules": [rule], "calibration": {"steps": steps}}))
    trained = open_checkpoint(train(tiny_config(tmp_path / "run", epochs=1)))
    quantize_as(trained, file, trained.config.DataLoader.Eval)
    quantizers = find_quantizers(trained.model)
    assert len(quantizers) == 4
    for quantizer in quantizers:
        quantizer.check_ready()
    trained.quantized = True
    with pytest.raises(LowbitError, match="quantized already"):
        quantize_as(trained, file, trained.config.DataLoader.Eval)
