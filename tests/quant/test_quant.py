from __future__ import annotations

import importlib

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.nn import find_quantizers, preparation_of
from lowbit.quant import PTQ, QAT, QuantConfig
from lowbit.quant.observers import (
    AbsMaxChannelWiseWeightObserver,
    AbsmaxObserver,
    HistObserver,
    KLObserver,
    MSEChannelWiseWeightObserver,
    MSEObserver,
)
from lowbit.quant.quanters import (
    ActLSQplusQuanter,
    FakeQuanterChannelWiseAbsMaxObserver,
    FakeQuanterWithAbsMaxObserver,
    PACTQuanter,
    WeightLSQplusQuanter,
)
from tests.support.tiny_net import TinyNet, build_tiny

IMAGES = paddle.to_tensor(np.random.default_rng(0).standard_normal((8, 3, 16, 16)).astype("float32"))
WEIGHTS = AbsMaxChannelWiseWeightObserver()


@pytest.mark.parametrize(
    "observer", [AbsmaxObserver(), HistObserver(percent=0.99), KLObserver(), MSEObserver()]
)
@pytest.mark.parametrize("weights", [WEIGHTS, MSEChannelWiseWeightObserver(), AbsmaxObserver()])
def test_post_training_quantization(observer, weights):
    net = build_tiny()
    net.eval()
    expected = net(IMAGES).numpy()
    ptq = PTQ(QuantConfig(activation=observer, weight=weights))
    watched = ptq.quantize(net)
    assert watched is not net and not find_quantizers(net)
    np.testing.assert_allclose(watched(IMAGES).numpy(), expected, atol=1e-6)  # fp32 until it is converted
    converted = ptq.convert(watched)
    found = converted(IMAGES).numpy()
    assert (found != expected).any()
    assert np.abs(found - expected).max() < 0.25 * np.abs(expected).max()


def test_the_largest_values_of_batches_give_the_scale():
    net = build_tiny()
    net.eval()
    ptq = PTQ(QuantConfig(activation=AbsmaxObserver(), weight=WEIGHTS))
    watched = ptq.quantize(net, inplace=True)
    assert watched is net
    for part in (IMAGES[:4], IMAGES[4:]):
        net(part)
    converted = ptq.convert(net, inplace=True)
    scale = np.mean([np.abs(IMAGES.numpy()[part]).max() for part in (slice(0, 4), slice(4, 8))]) / 127
    inputs = paddle.to_tensor(np.full((1, 3, 16, 16), 1e9, "float32"))
    assert float(converted.conv.input_quantizer(inputs).max()) == pytest.approx(127 * scale, rel=1e-5)


def test_converting_before_any_batch_says_so():
    ptq = PTQ(QuantConfig(activation=AbsmaxObserver(), weight=WEIGHTS))
    with pytest.raises(LowbitError, match="no finite batch has been seen yet"):
        ptq.convert(ptq.quantize(TinyNet()))


@pytest.mark.parametrize(
    "activation",
    [
        FakeQuanterWithAbsMaxObserver(moving_rate=0.8),
        ActLSQplusQuanter(),
        ActLSQplusQuanter(symmetric=False),
        PACTQuanter(FakeQuanterWithAbsMaxObserver()),
        PACTQuanter(),
    ],
)
@pytest.mark.parametrize(
    "weight", [FakeQuanterChannelWiseAbsMaxObserver(), WeightLSQplusQuanter(per_channel=True, quant_bits=4)]
)
def test_quantization_aware_training(activation, weight):
    qat = QAT(QuantConfig(activation=activation, weight=weight))
    net = qat.quantize(build_tiny())
    net.train()
    optimizer = paddle.optimizer.SGD(0.05, parameters=net.parameters())
    labels, losses = paddle.to_tensor(np.arange(8) % 4), []
    for _ in range(8):
        loss = nn.functional.cross_entropy(net(IMAGES), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    converted = qat.convert(net)
    assert not converted.training and np.isfinite(converted(IMAGES).numpy()).all()


def grids(config: QuantConfig, net: nn.Layer) -> dict[str, tuple[str, str]]:
    quantized = QAT(config).quantize(net, inplace=True)
    layers = dict(quantized.named_sublayers())
    return {
        name: (str(layers[name].input_quantizer.spec.grid), str(layers[name].weight_quantizer.spec.grid))
        for name in preparation_of(quantized).quantized
    }


def test_layers_by_type_name_and_object():
    eight, four = FakeQuanterWithAbsMaxObserver(), FakeQuanterWithAbsMaxObserver(quant_bits=4)
    config = QuantConfig(activation=None, weight=None)
    config.add_type_config(nn.Linear, activation=eight, weight=eight)
    assert grids(config, TinyNet()) == {"head": ("int8-narrow", "int8-narrow")}
    config.add_type_config([nn.Conv2D, nn.Linear], activation=eight, weight=eight)
    config.add_name_config("head", activation=four, weight=four)
    found = grids(config, TinyNet())
    assert found == {"conv": ("int8-narrow", "int8-narrow"), "head": ("int4-narrow", "int4-narrow")}
    net = TinyNet()
    config.add_layer_config(net.head, activation=eight, weight=four)
    assert grids(config, net)["head"] == ("int8-narrow", "int4-narrow")
    named = QuantConfig(eight, eight)
    net = TinyNet()
    named.add_name_config(net.conv.full_name(), activation=four, weight=four)
    assert grids(named, net)["conv"] == ("int4-narrow", "int4-narrow")


def test_mistakes():
    with pytest.raises(LowbitError, match="not in this model"):
        config = QuantConfig(AbsmaxObserver(), WEIGHTS)
        config.add_layer_config(nn.Linear(2, 2))
        config.recipe(TinyNet())
    with pytest.raises(LowbitError, match='no layer "hed", did you mean "head"'):
        config = QuantConfig(AbsmaxObserver(), WEIGHTS)
        config.add_name_config("hed")
        config.recipe(TinyNet())
    with pytest.raises(LowbitError, match="layers of type ReLU are not quantized"):
        QuantConfig(None, None).add_type_config(nn.ReLU)
    with pytest.raises(LowbitError, match="is for weights"):
        QuantConfig(activation=WEIGHTS, weight=None)
    with pytest.raises(LowbitError, match=r"lowbit\.QAT"):
        QAT({"weight_bits": 8})
    with pytest.raises(LowbitError, match="is not quantized"):
        QAT(QuantConfig(None, None)).convert(TinyNet())


@pytest.mark.parametrize(
    ("module", "name", "ours"),
    [
        ("lowbit.quant", "quant_aware", "lowbit.quantize"),
        ("lowbit.quant", "quant_post_static", "ptq_w8a8"),
        ("lowbit.quant.observers", "EMDObserver", "MSEObserver"),
        ("lowbit.quant.quanters", "GPTQ", "lowbit.quantize"),
    ],
)
def test_what_is_not_here_names_ours(module, name, ours):
    with pytest.raises(ImportError, match=ours):
        getattr(importlib.import_module(module), name)
    assert not hasattr(importlib.import_module(module), "unheard_of")


def test_the_older_path_of_paddleslim():
    from lowbit import QAT as ours
    from lowbit.dygraph.quant import QAT as found

    assert found is ours
