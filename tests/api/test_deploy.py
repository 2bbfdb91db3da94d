"""export and verify: one network after the other, through every engine."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

import lowbit
from lowbit.api import deploy, writer
from lowbit.api.writer import Writer
from lowbit.deploy.gains import EngineGain
from lowbit.deploy.model_files import read_inference_yml
from lowbit.errors import LowbitError
from tests.support.networks import ResidualBlock
from tests.support.own_networks import LOW, PTQ, QAT, TwoInputs, build, step


@pytest.fixture
def qat(images):
    return lowbit.quantize(build(), QAT, data=images)


def test_a_quantized_network(qat, images, labels, tmp_path):
    made = lowbit.export(qat, tmp_path, example=images[:3])
    assert [one.format for one in made.formats] == ["paddle", "onnx"]
    assert all(one.same_class == 1 and one.relative_difference < 1e-3 for one in made.formats)
    assert {path.name for path in made.files} == {
        "inference.json", "inference.pdiparams", "inference.yml", "inference.onnx"
    }  # fmt: skip
    assert made.formats[1].size < made.formats[1].fp32_size
    found = lowbit.verify(qat, tmp_path, (images, labels), latency=False, baseline=build())
    assert found.passed and found.samples == 40
    assert {one.engine for one in found.engines} == {"paddle", "onnxruntime", "openvino", "lowbit"}
    assert all(one.agreement == 1 and one.top1 == found.top1 for one in found.engines)


def test_the_network_stays_as_it_is(qat, images, labels, tmp_path):
    qat.train()
    qat.norm1.eval()
    before = {name: tensor.numpy().copy() for name, tensor in qat.state_dict().items()}
    lowbit.export(qat, tmp_path, example=images[:3])
    lowbit.verify(qat, tmp_path, (images, labels), engines="onnxruntime", latency=False)
    lowbit.analyze(qat, (images, labels))
    assert qat.training and qat.conv1.training and not qat.norm1.training
    for name, tensor in qat.state_dict().items():
        np.testing.assert_array_equal(before[name], tensor.numpy(), err_msg=name)


def test_an_fp32_network(images, tmp_path):
    made = lowbit.export(build(), tmp_path, example=images[:3])
    assert all(one.relative_difference < 1e-3 for one in made.formats)
    assert lowbit.verify(build(), tmp_path, images).passed


def test_low_precision_scales_are_fixed_by_export(images, labels, tmp_path):
    net = lowbit.quantize(build(), LOW)
    step(net, images, labels)
    with pytest.raises(LowbitError, match=r"1 layers choose .* data=loader"):
        lowbit.export(net, tmp_path, example=images[:3])
    assert not list(tmp_path.iterdir())
    made = lowbit.export(net, tmp_path, example=images[:3], data=(images, labels))
    assert made.fixed_layers == 1
    weights = {tensor.name: tensor for tensor in onnx.load(tmp_path / "inference.onnx").graph.initializer}
    assert weights["conv2.weight.integers"].data_type == onnx.TensorProto.INT4
    assert lowbit.verify(net, tmp_path, (images, labels), latency=False).passed
    step(net, images, labels, steps=6, rate=0.5)
    assert not lowbit.verify(net, tmp_path, (images, labels), latency=False).passed, "other weights by now"
    (tmp_path / deploy.SCALES_FILE).unlink()
    with pytest.raises(LowbitError, match="export it there first"):
        lowbit.verify(net, tmp_path, images)


def test_scales_of_an_earlier_export_do_not_stay(qat, images, labels, tmp_path):
    net = lowbit.quantize(build(), LOW)
    step(net, images, labels)
    lowbit.export(net, tmp_path, example=images[:3], data=images)
    lowbit.export(qat, tmp_path, example=images[:3])
    assert not (tmp_path / deploy.SCALES_FILE).exists()


def test_several_inputs_and_outputs(tmp_path):
    rng = np.random.default_rng(0)
    data = [((rng.standard_normal((8, 6)), rng.standard_normal((8, 4))), 0) for _ in range(3)]
    net = lowbit.quantize(TwoInputs(), {"weight_bits": 8}, data=data)
    made = lowbit.export(net, tmp_path, example=data[0][0])
    assert [one.same_class for one in made.formats] == [None, None]
    graph = onnx.load(tmp_path / "inference.onnx").graph
    assert [one.name for one in graph.input] == ["left", "right"]
    assert len(graph.output) == 3
    found = lowbit.verify(net, tmp_path, data)
    assert found.passed and found.samples == 24 and found.top1 is None
    assert len(found.engines) == 4
    net.head.weight.set_value(-net.head.weight)
    assert not lowbit.verify(net, tmp_path, data).passed


def test_a_class_for_every_pixel(images, tmp_path):
    net = nn.Sequential(nn.Conv2D(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2D(4, 2, 1))
    lowbit.quantize(net, {"weight_bits": 8}, data=images)
    lowbit.export(net, tmp_path, example=images[:2])
    assert lowbit.verify(net, tmp_path, images).passed


def test_tokens(tmp_path):
    class Words(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, words):
            return self.head(self.embed(words).mean(1))

    words = np.random.default_rng(0).integers(0, 20, (16, 5))
    net = lowbit.quantize(Words(), {"weight_bits": 8}, data=words)
    lowbit.export(net, tmp_path, example=words[:2], formats="paddle")
    assert lowbit.verify(net, tmp_path, words).passed


def test_what_onnx_cannot_hold_is_a_note(images, tmp_path):
    class Sorted(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2D(3, 4, 3)

        def forward(self, x):
            return paddle.kron(F.relu(self.conv(x)).mean([2, 3]), paddle.ones([1, 2]))

    net = Sorted()
    made = lowbit.export(net, tmp_path, example=images[:2])
    assert [one.format for one in made.formats] == ["paddle"]
    assert "No ONNX file" in made.notes[0] and "No ONNX file" in str(made)
    with pytest.raises(LowbitError):
        lowbit.export(net, tmp_path, example=images[:2], formats=["onnx"])


def test_classes_and_transforms_are_kept(qat, images, tmp_path):
    lowbit.export(
        qat, tmp_path, example=images[:2], formats="paddle", classes=list("abcd"),
        transforms=[{"ResizeImage": {"size": 8}}, {"ToCHWImage": None}],
    )  # fmt: skip
    kept = read_inference_yml(tmp_path / "inference.yml")
    assert kept.classes == list("abcd") and len(kept.ops) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formats": "onxx"}, 'did you mean "onnx"'),
        ({"formats": []}, "no format given"),
        ({"target": "avx3"}, "avx2"),
        ({"formats": "paddle", "target": "avx2"}, "target is about the ONNX file"),
        ({"transforms": [{"Resize": {}}]}, "ResizeImage"),
        ({"example": np.zeros((1, 5, 8, 8))}, "does not run on inputs"),
    ],
)
def test_what_cannot_be_exported(qat, images, tmp_path, options, message):
    with pytest.raises(LowbitError, match=message):
        lowbit.export(qat, tmp_path, **{"example": images[:2]} | options)
    assert not list(tmp_path.iterdir())


def test_another_network_does_not_pass(qat, images, labels, tmp_path):
    lowbit.export(qat, tmp_path, example=images[:2], formats="onnx")
    other = lowbit.quantize(build(seed=3), QAT, data=images)
    found = lowbit.verify(other, tmp_path, (images, labels), engines=["onnxruntime"], latency=False)
    assert not found.passed and "FAILED" in str(found)
    assert found.engines[0].wrong_layers


def test_nothing_exported(qat, images, tmp_path):
    with pytest.raises(LowbitError, match="holds no exported network"):
        lowbit.verify(qat, tmp_path, images)
    with pytest.raises(LowbitError, match="from 0 to 1"):
        lowbit.verify(qat, tmp_path, images, limit=99)


def test_results_in_all_their_forms(images, labels, tmp_path):
    class Hostile(type(build())):
        pass

    Hostile.__name__ = "<b>Net"
    net = lowbit.quantize(Hostile(), PTQ, data=images)
    folder = tmp_path / "<i>out"
    made = lowbit.export(net, folder, example=images[:2])
    found = lowbit.verify(net, folder, (images, labels))
    for result in (made, found, lowbit.analyze(net, (images, labels), budget="5bits")):
        assert max(map(len, str(result).splitlines())) <= 80
        assert "<i>" not in result._repr_html_() and "<table>" in result._repr_html_()
        assert json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert found.engines[0].speeds and "Latency" in str(found)


def test_a_fused_network(images, labels, tmp_path):
    layers = [
        nn.Conv2D(3, 8, 3),
        nn.BatchNorm2D(8),
        nn.ReLU(),
        nn.Conv2D(8, 8, 3),
        nn.BatchNorm2D(8),
        nn.ReLU(),
    ]
    net = lowbit.quantize(nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 4)), LOW)
    assert lowbit.fuse(net).fused
    with lowbit.accelerate():
        step(net, images, labels)
        lowbit.export(net, tmp_path, example=images[:3], data=images)
        assert lowbit.verify(net, tmp_path, (images, labels), latency=False).passed


def test_forms_are_written_to_their_folders(images, tmp_path):
    net = lowbit.quantize(build(), PTQ, data=images)
    full = lowbit.export(net, tmp_path, example=images[:3], form="fp32")
    assert full.directory == tmp_path / "fp32" and [one.form for one in full.formats] == ["fp32", "fp32"]
    simulated = lowbit.export(net, tmp_path, example=images[:3], form="simulated")
    assert [(one.format, one.form) for one in simulated.formats] == [("paddle", "simulated")]
    with pytest.raises(LowbitError, match='no form "int6"'):
        lowbit.export(net, tmp_path, example=images[:3], form="int6")


def test_a_form_that_is_slower_than_fp32_is_named(images, tmp_path, export_times):
    net = lowbit.quantize(build(), PTQ, data=images)
    assert "SLOWER" not in str(lowbit.export(net, tmp_path, example=images[:3]))
    export_times["quantized"] = 0.05
    made = lowbit.export(net, tmp_path, example=images[:3])
    assert all(gain.is_slower for one in made.formats for gain in one.engines)
    assert "SLOWER THAN FP32: paddle in Paddle Inference" in str(made) and "--form fp32" in str(made)
    assert "faster" not in str(lowbit.export(net, tmp_path, example=images[:3], latency=False)).split("\n")[1]


@pytest.mark.parametrize("recipe", ["ptq_w8a8", "ptq_w7a8", "qat_w8a8", "qat_w7a8"])
def test_recipes_with_quantized_outputs(recipe, images, labels, tmp_path):
    """A residual network by each of them, trained for some steps where that is what it is for."""
    paddle.seed(0)
    layers = [nn.Conv2D(3, 4, 3, padding=1), nn.BatchNorm2D(4), nn.ReLU(), ResidualBlock()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(4, 4))
    net(paddle.to_tensor(images))
    net = lowbit.quantize(net.eval(), recipe, data=[images])
    if recipe.startswith("qat"):
        net.train()
        for _ in range(3):
            step(net, images, labels)
    made = lowbit.export(net.eval(), tmp_path, example=images, latency=False)
    gains = {gain.engine: gain for one in made.formats for gain in one.engines}
    assert {"paddle", "onnxruntime", "openvino", "lowbit"} <= gains.keys()
    exact = 1e-6 if recipe.startswith("ptq") else 0.01  # a trained bias is rounded in the file
    for gain in gains.values():
        assert gain.same_class == 1 and gain.relative_difference < exact, gain


def test_without_an_fp32_network_to_compare_with_latency_is_left_out(images, tmp_path, monkeypatch):
    net = lowbit.quantize(build(), PTQ, data=images)

    def cannot(self, directory):
        raise LowbitError("no room")

    monkeypatch.setattr(Writer, "in_fp32", cannot)
    made = lowbit.export(net, tmp_path, example=images[:3])
    note = "No latency: the same network in fp32, to compare with, cannot be written: no room"
    assert note in made.notes
    assert [one.format for one in made.formats] == ["paddle", "onnx"]
    assert all(gain.ms is None and gain.same_class == 1 for one in made.formats for gain in one.engines)


@pytest.mark.parametrize(
    ("same", "ms", "note"),
    [
        (1.0, 1.0, None),
        (0.5, 1.0, "No int8 form for Paddle: it gives the network's class to 50 % of the samples."),
        (1.0, 9.0, "No int8 form for Paddle: 9 ms, the simulated one takes 5 ms."),
    ],
)
def test_paddles_int8_form_is_kept_where_it_is_right_and_faster(
    same, ms, note, images, tmp_path, monkeypatch
):
    plain = Writer._paddle

    def paddle_format(self, word):
        if word == "paddle-int8" and not self.full:
            (tmp_path / "int8").mkdir()
            return replace(plain(self, "paddle"), format=word)
        return plain(self, word)

    def gains(word, *_, **__):
        agrees, taken = {"paddle": (1.0, 5.0), "paddle-int8": (same, ms)}.get(word, (1.0, 5.0))
        return (EngineGain(word, word, agrees, 0.0, ms=taken, fp32_ms=5.0, faster=5.0 / taken),)

    monkeypatch.setattr(Writer, "_paddle", paddle_format)
    monkeypatch.setattr(writer, "measure_gains", gains)
    made = lowbit.export(lowbit.quantize(build(), PTQ, data=images), tmp_path, example=images[:3])
    assert ("paddle-int8" in [one.format for one in made.formats]) == (note is None)
    assert (tmp_path / "int8").exists() == (note is None)
    assert note is None or note in made.notes


def test_weights_in_fewer_bits(images, labels, tmp_path):
    net = lowbit.quantize(build(), PTQ, data=images)
    made = lowbit.export(net, tmp_path, example=images, formats="onnx", weight_bits=7)
    weights = {
        one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(made.files[0]).graph.initializer
    }
    integers = [value for name, value in weights.items() if name.endswith("weight.integers")]
    assert integers and all(np.abs(value.astype(int)).max() == 63 for value in integers)
    assert "rounded to 7 bits" in str(made)
    assert made.formats[0].same_class > 0.9  # compared with the 8 bits that were calibrated
    found = lowbit.verify(net, tmp_path, (images, labels), engines="onnxruntime", latency=False)
    assert 0 < found.engines[0].agreement <= 1
    with pytest.raises(LowbitError, match="no weights of more than 8 bits"):
        lowbit.export(net, tmp_path, example=images, formats="onnx", weight_bits=8)
