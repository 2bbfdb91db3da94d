from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import paddle
import pytest
from paddle import nn
from paddle.vision import models as vision

from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine, export_onnx
from lowbit.errors import LowbitError
from lowbit.machine import hardware_info
from lowbit.models import build_model
from lowbit.nn import deployed_weight, prepare
from lowbit.recipe import make_recipe
from tests.support.onnx_models import Net, answers, normal, quantized
from tests.support.processors import exact_targets, has_vnni
from tests.support.tiny_net import build_tiny

TINY = (3, 16, 16)
EXPORT = sys.modules[export_onnx.__module__]  # the package has a function of the module's name


def lively(name: str, shape: tuple[int, int, int]) -> nn.Layer:
    """A network whose batch norms have seen something."""
    paddle.seed(0)
    model = build_model(name, 10)
    model.train()
    model(paddle.to_tensor(normal(4, *shape)))
    return model.eval()


def stored(path) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize(("name", "size"), [("resnet20", 32), ("mobilenet_v3_small", 32), ("resnet18", 32)])
def test_networks(name, size, bits, write):
    shape = (3, size, size)
    model = quantized(lively(name, shape), shape, weight_bits=bits, activation_bits=bits)
    made = write(model, shape, target="vnni" if "vnni" in exact_targets() else "avx2")
    images = normal(4, *shape, seed=9)
    expected = answers(model, images)
    spread = max(float(np.abs(expected - expected.mean()).mean()), 1e-3 * float(np.abs(expected).max()))
    for engine in (OnnxRuntimeEngine(made.path), OpenVinoEngine(made.path)):
        assert np.abs(engine.run(images) - expected).mean() <= 0.05 * spread, engine.name

    arrays = stored(made.path)
    for layer_name, layer in model.named_sublayers():
        if hasattr(layer, "weight_quantizer"):
            integers, _ = deployed_weight(layer)
            found = arrays[f"{layer_name}.weight.integers"].astype(np.int16)
            found -= arrays[f"{layer_name}.weight.zero"].astype(np.int16).max()  # 128 for unsigned ones
            np.testing.assert_array_equal(found, integers)  # these batch norms have no negative gains
    assert made.size == made.path.stat().st_size
    assert made.fp32_size / made.size > (3.3 if bits == 8 else 5.5)


@pytest.mark.parametrize(
    "build",
    [vision.mobilenet_v1, vision.mobilenet_v2, vision.squeezenet1_1, vision.shufflenet_v2_x0_25],
    ids=lambda build: build.__name__,
)
def test_paddles_own_networks(build, write):
    made = write(build(num_classes=7), (3, 64, 64), quantized=False)
    assert OnnxRuntimeEngine(made.path).run(normal(2, 3, 64, 64)).shape == (2, 7)


def test_names_and_description(write):
    made = write(quantized(build_tiny(), TINY), TINY, target="avx2")
    model = onnx.load(made.path)
    assert (model.graph.input[0].name, model.graph.output[0].name) == ("x", "logits")
    assert {"conv", "conv.input", "head.input", "logits"} <= {o for n in model.graph.node for o in n.output}
    described = json.loads(model.metadata_props[0].value)
    assert described["target"] == made.target == "avx2"
    assert described["layers"] == {
        "conv": {"output": "conv", "input": "conv.input", "input_bits": 8, "bits": 8},
        "head": {"output": "logits", "input": "head.input", "input_bits": 8, "bits": 8},
    }
    assert made.notes[0] == described["form"]
    assert "uint8 with zero point 128" in described["form"]
    assert "same class for 100.0%" in made.notes[-1]


def test_a_layer_called_as_the_output_is(write):
    class Named(nn.Layer):
        def __init__(self):
            super().__init__()
            self.logits, self.x = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.x(self.logits(x.flatten(1)))

    made = write(Named(), (2, 2, 2), quantized=False)
    described = json.loads(onnx.load(made.path).metadata_props[0].value)["layers"]
    assert described == {"logits": {"output": "logits:2"}, "x": {"output": "logits"}}


def test_fp32_of_a_quantized_model(write):
    model, images = build_tiny(), normal(2, *TINY)
    before = answers(model, images)
    made = write(quantized(model, TINY, weight_bits=2), TINY, quantized=False)
    np.testing.assert_allclose(OnnxRuntimeEngine(made.path).run(images), before, atol=1e-5)
    assert (made.target, made.fp32_size) == (None, made.size)


@pytest.mark.skipif(
    has_vnni() and not hardware_info().has("avx512f"), reason="OpenVINO cannot do without VNNI here"
)
def test_processors_without_vnni_need_their_own_form(tmp_path):
    """In a process of its own, since OpenVINO decides once which instructions it uses."""
    script = (
        "import sys; from tests.deploy.onnx.test_export_onnx import largest_difference_in_openvino as run;"
        "print('differences', *(run(target, sys.argv[1]) for target in ('vnni', 'avx2')))"
    )
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    command = [sys.executable, "-c", script, str(tmp_path / "net.onnx")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    saturated, exact = map(float, done.stdout.split("differences")[1].split())
    assert saturated > 0.01
    assert exact < 1e-3


def largest_difference_in_openvino(target: str, path: str) -> float:
    conv = nn.Conv2D(16, 8, 3)
    conv.weight.set_value(paddle.sign(conv.weight))  # all integers as large as they get
    model = Net(lambda x, conv: conv(nn.functional.relu(x)), conv)
    unsigned = {"grid": "int8", "sign": "auto", "scaling": "fixed"}
    both = [{"forward": {"input": unsigned, "weight": {"grid": "int8", "granularity": "N"}}}]
    quantized(model, (16, 6, 6), rules=both)
    export_onnx(model, path, model_name="net", image_shape=(16, 6, 6), target=target)
    images = np.abs(normal(2, 16, 6, 6)) + 1
    expected = answers(model, images)
    return float(np.abs(OpenVinoEngine(path).run(images) - expected).max() / np.abs(expected).max())


def test_a_model_without_quantized_layers(write):
    with pytest.raises(LowbitError, match="no quantized layer"):
        write(build_tiny(), TINY)


def test_nothing_is_written_when_something_fails(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_text("old")
    model = prepare(build_tiny(), make_recipe({"weight_bits": 8}))
    with pytest.raises(LowbitError):
        export_onnx(model, path, model_name="net", image_shape=TINY)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


def test_python_that_became_a_constant(write):
    class Counting(nn.Layer):
        calls = 0

        def forward(self, x):
            Counting.calls += 1
            return x.flatten(1) * float(Counting.calls)

    with pytest.raises(LowbitError, match="answers differently from the model"):
        write(Counting(), (1, 2, 2), quantized=False)


def test_an_image_shape_that_does_not_fit(write):
    with pytest.raises(LowbitError, match="does not run on images of 4x16x16"):
        write(build_tiny(), (4, 16, 16), quantized=False)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LowbitError, match="cannot write"):
        export_onnx(
            build_tiny(), tmp_path / "file" / "n.onnx", model_name="n", image_shape=TINY, quantized=False
        )


def test_amplified_rounding_is_told_from_a_constant(write, monkeypatch):
    """An engine whose first integers differ by single steps: later layers make more of it, none is wrong."""
    shape = (3, 32, 32)
    model = quantized(lively("resnet20", shape), shape, weight_bits=4, activation_bits=4)

    class Rounding(OnnxRuntimeEngine):
        def run_all(self, inputs):
            return super().run_all([x + np.float32(0.01) for x in inputs])

        def run_with(self, batch, names):
            return super().run_with(batch + np.float32(0.01), names)

    monkeypatch.setattr(EXPORT, "OnnxRuntimeEngine", Rounding)
    monkeypatch.setattr(EXPORT, "_QUANTIZED_TOLERANCE", 1e-6)
    with pytest.raises(
        LowbitError, match=r"No layer is wrong by itself: .* grow from layer to layer"
    ) as caught:
        write(model, shape)
    assert "computes a value in Python" not in str(caught.value)


def test_a_wrong_layer_is_no_rounding(write, monkeypatch):
    shape = (3, 32, 32)
    model = quantized(lively("resnet20", shape), shape, weight_bits=8, activation_bits=8)

    class Wrong(OnnxRuntimeEngine):
        def run_all(self, inputs):
            return [-answer for answer in super().run_all(inputs)]

        def run_with(self, batch, names):
            found = super().run_with(batch, names)
            return found | {"logits": -found["logits"]}

    monkeypatch.setattr(EXPORT, "OnnxRuntimeEngine", Wrong)
    with pytest.raises(LowbitError, match="computes a value in Python"):
        write(model, shape)
