"""Aligned scales: no product of integers is near a tie, so that every engine gives the same integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle import nn
from paddle.vision.models import mobilenet_v1, mobilenet_v2

from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine
from lowbit.deploy.engines import LowbitEngine
from lowbit.deploy.onnx import export_onnx
from lowbit.deploy.verify.integer_reference import IntegerReference, Sample
from lowbit.nn import calibrate, edge_quantizers, eval_mode, integer_reference, prepare
from lowbit.nn.calibration import correct_biases
from lowbit.nn.convert import preparation_of
from lowbit.nn.edges import find_edges
from lowbit.nn.exact_rounding import align_scales, odd_ratio
from lowbit.recipe import find_layers, make_recipe
from tests.support.networks import ResidualBlock
from tests.support.onnx_models import normal
from tests.support.processors import skip_unless_exact


def recipe(bits: int, observer: str = "mse(1)", fold: str = "export"):
    input_ = {"grid": "int8", "sign": "auto", "scaling": "fixed", "observer": observer}
    weight = {"grid": f"int{bits}-narrow", "granularity": "N"}
    rules = [{"forward": {"input": input_, "weight": weight}}]
    return make_recipe(
        {
            "rules": rules,
            "calibration": {"steps": 2, "correct_bias": True},
            "outputs": "quantized",
            "batch_norm": {"fold": fold},
        }
    )


@given(value=st.floats(1e-3, 10), total=st.integers(-(2**20), 2**20))
def test_products_stay_away_from_ties(value, total):
    ratio = float(odd_ratio(np.array([value]))[0])
    assert value * (1 - 2.1e-7) <= ratio <= value * 1.0051
    exact = Fraction(ratio).limit_denominator(4001)
    assert exact.denominator % 2 == 1 and abs(float(exact) - ratio) < 1e-12
    from_tie = abs((total * exact) % 1 - Fraction(1, 2))
    assert from_tie >= Fraction(1, 2 * exact.denominator)


def test_what_is_rounded_is_found():
    net = nn.Sequential(
        nn.Conv2D(3, 4, 1), ResidualBlock(), nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(4, 2)
    )
    names = [layer.name for layer in find_layers(net)]
    found = find_edges(net, [paddle.ones([1, 3, 8, 8])], names).roundings
    assert [(one.kind, one.layer, one.batch_norm, one.target, one.count) for one in found] == [
        ("layer", "0", "", ("0", "output"), 1),
        ("layer", "1.first", "", ("1.second", "input"), 1),
        ("layer", "1.second", "1.bn", ("1.bn", "output"), 1),
        ("sum", "", "", ("1", "output"), 1),
        ("mean", "", "", ("4", "input"), 64),
    ]
    assert found[3].sources == (("1.bn", "output"), ("0", "output"))


def trained(build) -> nn.Layer:
    paddle.seed(0)
    net = build(num_classes=50)
    net.train()
    with paddle.no_grad():
        for seed in range(8):
            net(paddle.to_tensor(normal(8, 3, 64, 64, seed=100 + seed)))
    return net.eval()


@pytest.mark.parametrize(
    ("build", "engines"),
    [
        (mobilenet_v2, [OnnxRuntimeEngine, OpenVinoEngine, LowbitEngine]),
        (mobilenet_v1, [OnnxRuntimeEngine, OpenVinoEngine, LowbitEngine]),
    ],
)
@pytest.mark.parametrize(("target", "bits"), [("avx2", 7), ("vnni", 8)])
def test_engines_give_the_same_integers(build, engines, target, bits, tmp_path):
    """Through all layers: one integer that differs would show in the answers, far above float rounding.

    ResNet18 is left out: its sums of 4,608 products have multipliers below 1/4001, which stay as they are, so
    that single integers may differ.
    """
    skip_unless_exact(target)
    batches = [paddle.to_tensor(normal(4, 3, 64, 64, seed=seed)) for seed in (1, 2)]
    net = trained(build)
    prepare(net, recipe(bits, fold="calibration"), batches[0])
    calibrate(net, batches)
    before = {name: quantizer.scale().numpy() for name, quantizer in edge_quantizers(net).items()}
    with eval_mode(net):
        calibrated = net(batches[0]).numpy()
    correct_biases(net, batches)
    for name, quantizer in edge_quantizers(net).items():
        assert abs(float(quantizer.scale()) / float(before[name]) - 1) < 0.02
    path = tmp_path / "net.onnx"
    export_onnx(net, path, model_name="net", image_shape=(3, 64, 64), target=target)
    images = normal(6, 3, 64, 64, seed=9)
    with integer_reference(net):  # sums of 4,608 products of 8 bits leave the integers that fp32 holds
        expected = net(paddle.to_tensor(images)).numpy()
    for engine in (kind(path) for kind in engines):
        np.testing.assert_allclose(
            engine.run(images), expected, rtol=0, atol=2e-6 * np.abs(expected).max(), err_msg=engine.name
        )
    with eval_mode(net):
        assert np.abs(net(batches[0]).numpy() - calibrated).mean() < 0.2 * calibrated.std()


def test_aligned_twice_is_aligned_once():
    batches = [paddle.to_tensor(normal(4, 3, 64, 64, seed=1))]
    net = trained(mobilenet_v2)
    prepare(net, recipe(8), batches[0])
    calibrate(net, batches)
    align_scales(net)
    once = {name: value.numpy() for name, value in net.state_dict().items()}
    align_scales(net)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), once[name], err_msg=name)


def test_both_operands_of_every_sum_have_scales_in_255ths_of_the_result():
    """A sum's result is settled by its skip branch; the other branch then follows."""
    batches = [paddle.to_tensor(normal(4, 3, 64, 64, seed=1))]
    net = trained(mobilenet_v2)
    prepare(net, recipe(8), batches[0])
    calibrate(net, batches)
    align_scales(net)
    layers = dict(net.named_sublayers())
    sums = [one for one in preparation_of(net).edges.roundings if one.kind == "sum"]
    assert len(sums) == 10
    for one in sums:
        target, *sources = (
            float(getattr(layers[owner], f"{place}_quantizer").scale())
            for owner, place in (one.target, *one.sources)
        )
        for source in sources:
            of_255 = 255 * source / target
            assert of_255 == pytest.approx(round(of_255), rel=1e-6), (one.target, source / target)


def test_what_was_calibrated_is_deployed_integer_for_integer(tmp_path):
    """With batch norm folded at calibration the network itself has the runtime's integers, in every layer."""
    batches = [paddle.to_tensor(normal(4, 3, 64, 64, seed=seed)) for seed in (1, 2)]
    net = trained(mobilenet_v2)
    prepare(net, recipe(8, fold="calibration"), batches[0])
    calibrate(net, batches)
    correct_biases(net, batches)
    made = export_onnx(net.eval(), tmp_path / "net.onnx", model_name="net", image_shape=(3, 64, 64))
    reference = IntegerReference(net, Sample.spread(batches=1, images=8), made.path)
    reference.model_answer(normal(8, 3, 64, 64, seed=9))  # raises where an integer differs
    assert reference.read == 8 and reference.unequal == 0 and reference.integers > 1_000_000


@pytest.mark.parametrize("gain", [1.0, 0.002, 0.0005])
def test_a_small_branch_does_not_move_the_scale_of_the_sum(gain):
    paddle.seed(0)
    net = nn.Sequential(nn.Conv2D(3, 4, 3), ResidualBlock(), nn.Conv2D(4, 4, 3))
    net[1].bn.weight.set_value(paddle.full_like(net[1].bn.weight, gain))
    batches = [paddle.to_tensor(normal(4, 3, 16, 16, seed=1))]
    prepare(net.eval(), recipe(8), batches[0])
    calibrate(net, batches)
    before = float(net[2].input_quantizer.scale())  # reads the sum
    align_scales(net)
    assert float(net[2].input_quantizer.scale()) == pytest.approx(before, rel=0.0101)


def test_a_model_without_edges_stays():
    net = nn.Sequential(nn.Conv2D(3, 4, 1), nn.ReLU(), nn.Conv2D(4, 2, 1))
    values = recipe(8).model_copy(update={"outputs": "full"})
    x = paddle.to_tensor(normal(2, 3, 8, 8))
    prepare(net, values, x)
    calibrate(net, [x])
    weight = net[0].weight.numpy()
    assert align_scales(net) == 0
    np.testing.assert_array_equal(net[0].weight.numpy(), weight)
