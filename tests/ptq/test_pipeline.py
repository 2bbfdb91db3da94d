"""What reconstruction makes goes on like any quantized network: API, runs, export, verify, QAT."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

import lowbit
from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.nn import deployed_weight, is_quantized
from lowbit.ptq.saved_progress import SavedProgress
from lowbit.recipe import load_recipe
from lowbit.training.checkpoint import read_checkpoint
from lowbit.training.loop import train
from lowbit.training.post_training import calibrate_run, calibration_config
from tests.support.ptq_nets import images, network, recipe
from tests.support.runs import tiny_config, tiny_values

SHORT = {"iterations": 5, "batch_size": 8}


def _integers(net: paddle.nn.Layer) -> dict[str, np.ndarray]:
    layers = net.named_sublayers()
    return {name: deployed_weight(layer)[0] for name, layer in layers if is_quantized(layer)}


def test_one_call_quantizes_and_the_export_computes_the_same(tmp_path):
    net = lowbit.quantize(network(), recipe(4, **SHORT), data=[images()])
    x = images(40, seed=7).numpy()
    lowbit.export(net, tmp_path, example=x[:3])
    labels = np.zeros(len(x), np.int64)
    found = lowbit.verify(net, tmp_path, (x, labels), engines="onnxruntime", latency=False)
    assert found.passed
    assert all(engine.agreement == 1 for engine in found.engines)


def test_calibrate_says_what_was_done():
    net = lowbit.quantize(network(), recipe(4, **SHORT))
    made = lowbit.calibrate(net, [images()])
    assert len(made.reconstructed.blocks) == 4
    assert "Reconstructed 4 blocks" in str(made)
    assert made.to_dict()["reconstructed"]["blocks"][0]["name"] == "stem"
    before = _integers(net)
    again = lowbit.calibrate(net, [images()])
    assert again.reconstructed is None, "weights that are on their grids are not learned again"
    assert all((before[name] == found).all() for name, found in _integers(net).items())


def test_qat_with_learned_steps_starts_from_what_was_reconstructed():
    values = recipe(4, **SHORT).model_dump(mode="json", exclude={"rules"})
    learned = {"grid": "int4", "scaling": "learned", "observer": "mse"}
    rule = {"forward": {"input": {**learned, "sign": "auto"}, "weight": {**learned, "granularity": "N"}}}
    reference = network()
    net = lowbit.quantize(copy.deepcopy(reference), {**values, "rules": [rule]}, data=[images()])
    for name, layer in net.named_sublayers():
        if is_quantized(layer):
            integers, operand = deployed_weight(layer)
            np.testing.assert_array_equal(layer.weight.numpy(), integers * operand.scale, err_msg=name)
    net.train()
    optimizer = paddle.optimizer.Adam(0.002, parameters=net.parameters())
    target, losses = reference(images()).detach(), []
    for _ in range(30):
        loss = F.mse_loss(net(images()), target)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0]


def test_the_network_itself_can_be_trained_on():
    net = lowbit.quantize(network(), recipe(4, **SHORT), data=[images()])
    net.train()
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    before = copy.deepcopy(_integers(net))
    for _ in range(5):
        F.cross_entropy(net(images()), paddle.zeros([32], "int64")).backward()
        optimizer.step()
        optimizer.clear_grad()
    after = _integers(net.eval())
    assert any((before[name] != after[name]).any() for name in before)


# In a run ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fp32(tmp_path_factory):
    return train(tiny_config(tmp_path_factory.mktemp("fp32") / "run"))


def _config(folder, fp32):
    values = tiny_values(folder, pretrained_model=str(fp32 / "checkpoints/best.pdparams"))
    operand = {"scaling": "fixed", "observer": "mse"}
    forward = {
        "input": {"grid": "int8", "sign": "auto", **operand},
        "weight": {"grid": "int4", "granularity": "N", **operand},
    }
    values["Recipe"] = {"rules": [{"forward": forward}], "calibration": {"steps": 3}, "reconstruction": SHORT}
    return calibration_config(validate(values, {}, "ptq"))


def test_a_run_that_was_killed_goes_on_with_the_same_bits(fp32, tmp_path, monkeypatch):
    whole = calibrate_run(_config(tmp_path / "whole", fp32))
    assert not (whole / "reconstruction").exists()
    save = SavedProgress.save

    def killed(self, number, *rest):
        save(self, number, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SavedProgress, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            calibrate_run(_config(tmp_path / "killed", fp32))
    kept = list((tmp_path / "killed/reconstruction").iterdir())
    assert len(kept) == 1
    again = calibrate_run(_config(tmp_path / "killed", fp32))
    models = [read_checkpoint(run / "checkpoints/latest.lowbit").model for run in (whole, again)]
    assert all((models[0][name] == models[1][name]).all() for name in models[0])


# Recipes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "weight", "signal"), [("ptq_w4a8", 4, 8), ("ptq_w4a4", 4, 4), ("ptq_w3a6", 3, 6)]
)
def test_bits_by_name(name, weight, signal):
    first, second, *others, last = load_recipe(name).plans(network()).values()
    assert {(p.forward.weight.grid.bits, p.forward.input.grid.bits) for p in others} == {(weight, signal)}
    assert all(p.forward.weight.grid.bits == p.forward.input.grid.bits == 8 for p in (first, last))
    assert (second.forward.weight.grid.bits, second.forward.input.grid.bits) == (weight, 8)


def test_a_network_of_two_layers_is_quantized_in_8_bits():
    plans = load_recipe("ptq_w4a4").plans(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))).values()
    assert {p.forward.weight.grid.bits for p in plans} == {p.forward.input.grid.bits for p in plans} == {8}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reconstruction": {"iteration": 3}}, "did you mean"),
        ({"reconstruction": {"drop": 2}}, "drop"),
        ({"calibration": {"steps": 0}}, "reconstruction needs images"),
        ({"calibration": {"steps": 2, "correct_bias": True}}, "corrects biases itself"),
        ({"outputs": "quantized"}, "goes with outputs: full"),
    ],
)
def test_mistakes_in_a_recipe_are_errors(change, message):
    values = recipe().model_dump(mode="json", exclude={"rules"})
    rules = [{"forward": {"weight": {"grid": "int4", "granularity": "N", "scaling": "fixed"}}}]
    with pytest.raises(LowbitError, match=message):
        load_recipe({**values, "rules": rules, **change})


def test_weights_with_dynamic_scales_are_an_error():
    rules = [{"forward": {"weight": {"grid": "int4", "granularity": "N"}}}]
    chosen = load_recipe({"rules": rules, "calibration": {"steps": 1}, "reconstruction": {}})
    with pytest.raises(LowbitError, match="give it scaling: fixed"):
        chosen.plans(network())
