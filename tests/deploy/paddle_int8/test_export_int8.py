from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

import lowbit
from lowbit.deploy import PaddleEngine
from lowbit.deploy.paddle_int8 import export_int8 as export_module
from lowbit.deploy.paddle_int8.export_int8 import _bounded, merge
from lowbit.deploy.paddle_int8.integer_conv import FusedActivation, IntegerConv, place_integer_convs
from lowbit.deploy.paddle_int8.program import trace
from lowbit.errors import LowbitError
from lowbit.nn import DeployedOperand, integer_reference, is_quantized
from tests.support.exports import SHAPE
from tests.support.int8_models import INT8, NARROW, quantized
from tests.support.processors import needs_vnni
from tests.support.tiny_net import build_tiny

FIXED_SIGN = INT8 | {"grid": "int8-narrow", "sign": "fixed"}


def reference(model, images):
    with integer_reference(model), paddle.no_grad():
        return model(paddle.to_tensor(images)).numpy()


@needs_vnni
@pytest.mark.parametrize(
    ("input_", "weight"),
    [
        (INT8, NARROW),
        (FIXED_SIGN, NARROW),
        (INT8 | {"sign": "fixed"}, NARROW | {"grid": "int8", "granularity": "per-tensor"}),
        (INT8 | {"clip": "pact"}, NARROW),
        (INT8 | {"grid": "int4"}, NARROW | {"grid": "int4"}),
        (INT8 | {"scaling": "learned"}, NARROW | {"scaling": "learned"}),
    ],
    ids=["auto", "narrow", "full range", "pact", "int4", "learned"],
)
def test_the_integers_are_those_that_were_trained(every_kind, export_int8, tmp_path, images, input_, weight):
    model = quantized(every_kind, input_, weight)
    exported = export_int8(model, tmp_path)
    expected = reference(model, images)
    assert len(exported.layers) == 7
    for optimize in (True, False):
        answer = PaddleEngine(tmp_path, optimize=optimize).run(images)
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@needs_vnni
def test_batch_norms_folded_in_training(every_kind, export_int8, tmp_path, images):
    model = quantized(every_kind, batch_norm={"fold": "training"})
    export_int8(model, tmp_path)
    expected = reference(model, images)
    answer = PaddleEngine(tmp_path).run(images)
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@needs_vnni
def test_weights_are_stored_as_int8(export_int8, tmp_path):
    paddle.seed(0)
    model = quantized(nn.Sequential(nn.Conv2D(3, 64, 3), nn.Flatten(), nn.Linear(64 * 14 * 14, 4)))
    exported = export_int8(model, tmp_path)
    assert exported.model.params.stat().st_size < 0.27 * exported.fp32_size
    assert b"fused_conv2d" in exported.model.model.read_bytes()


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (lambda: nn.Conv2DTranspose(3, 4, 2), '"0": Paddle has no transposed'),
        (lambda: nn.Conv2D(16, 4, 2, data_format="NHWC"), '"0": .* NCHW only'),
    ],
)
def test_a_layer_that_cannot_is_named(export_int8, tmp_path, layer, why):
    model = nn.Sequential(layer(), nn.Flatten())
    features = model(paddle.zeros([1, 3, 16, 16])).shape[1]
    model.add_sublayer("2", nn.Linear(features, 4))
    with pytest.raises(LowbitError, match=why):
        export_int8(quantized(model), tmp_path)


class SharedWeight(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(768, 768), nn.Linear(768, 768)
        self.b.weight = self.a.weight
        self.head = nn.Linear(768, 4)

    def forward(self, x):
        return self.head(self.b(self.a(x.flatten(1))))


def test_two_layers_with_one_weight_are_refused(export_int8, tmp_path):
    with pytest.raises(LowbitError, match="shares its weight"):
        export_int8(quantized(SharedWeight()), tmp_path)


class TwiceTheSame(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, 3, 3, padding=1)
        self.head = nn.Linear(3 * 16 * 16, 4)

    def forward(self, x):
        return self.head(self.conv(self.conv(x)).flatten(1))


@needs_vnni
def test_a_layer_may_be_called_twice(export_int8, tmp_path, images):
    paddle.seed(0)
    model = quantized(TwiceTheSame())
    export_int8(model, tmp_path)
    expected = reference(model, images)
    answer = PaddleEngine(tmp_path).run(images)
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@needs_vnni
def test_the_model_stays_as_it_is(every_kind, export_int8, tmp_path, images):
    model = quantized(every_kind)
    before = reference(model, images)
    model.train()
    export_int8(model, tmp_path)
    assert model.training and paddle.in_dynamic_mode()
    assert all("forward" not in vars(layer) for layer in model.sublayers(include_self=True))
    np.testing.assert_array_equal(reference(model, images), before)


@needs_vnni
def test_wrong_answers_are_not_put_in_place(every_kind, export_int8, tmp_path, monkeypatch):
    def wrong(program, nodes):
        nodes = list(nodes)
        next(node for node in nodes if hasattr(node, "integers")).scale[:] *= 3
        return nodes

    monkeypatch.setattr(export_module, "merge", wrong)
    with pytest.raises(LowbitError, match="answers differently"):
        export_int8(quantized(every_kind), tmp_path)
    assert not list(tmp_path.iterdir())


def test_quantized_edges_are_refused(export_int8, tmp_path):
    net = nn.Sequential(nn.Conv2D(3, 4, 3), nn.ReLU(), nn.AvgPool2D(2), nn.Flatten(), nn.Linear(196, 4))
    images = paddle.randn([4, 3, 16, 16])
    net = lowbit.quantize(net, "ptq_w8a8", data=[images]).eval()
    with pytest.raises(LowbitError, match="outputs: quantized"):
        export_int8(net, tmp_path)
    made = lowbit.export(net, tmp_path, example=images, formats="paddle")  # nothing is left behind
    assert made.formats[0].same_class == 1


def test_a_model_without_integers_is_refused(export_int8, tmp_path):
    with pytest.raises(LowbitError, match="not quantized"):
        export_int8(build_tiny(), tmp_path)


def test_scales_that_change_with_every_call_are_refused(export_int8, tmp_path):
    model = quantized(build_tiny(), INT8 | {"scaling": "dynamic", "sign": "fixed"})
    with pytest.raises(LowbitError, match="chosen in every call"):
        export_int8(model, tmp_path)


def test_a_loop_over_a_tensor_is_refused(export_int8, tmp_path):
    class Loop(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3 * 16 * 16, 4)

        def forward(self, x):
            y = self.head(x.flatten(1))
            while y.max() > 1e6:
                y = y / 2
            return y

    with pytest.raises(LowbitError, match="loop or a condition"):
        export_int8(quantized(Loop()), tmp_path)


def test_padded_channels_are_refused(export_int8, tmp_path):
    class Padding(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5 * 16 * 16, 4)

        def forward(self, x):
            padded = nn.functional.pad(x, [0, 0, 0, 2, 0, 0, 0, 0], pad_from_left_axis=True)
            return self.head(padded.flatten(1))

    with pytest.raises(LowbitError, match="pads channels"):
        export_int8(quantized(Padding()), tmp_path)


def test_a_processor_without_vnni_is_refused(export_int8, tmp_path, monkeypatch):
    monkeypatch.setenv("LOWBIT_CPU", "amd-avx2")
    with pytest.raises(LowbitError, match="VNNI"):
        export_int8(quantized(build_tiny()), tmp_path)
    assert not list(tmp_path.iterdir())


@needs_vnni
def test_int8_without_onednn_is_refused(export_int8, tmp_path):
    export_int8(quantized(build_tiny()), tmp_path)
    with pytest.raises(LowbitError, match="only oneDNN"):
        PaddleEngine(tmp_path, onednn=False)


def test_what_is_merged_where(every_kind):
    model = quantized(every_kind)
    traced = trace(model, [layer for layer in model.sublayers() if is_quantized(layer)], SHAPE)
    nodes = merge(traced.program, place_integer_convs(traced.program, traced.layers))
    convs = {node.name: node for node in nodes if isinstance(node, IntegerConv)}
    kinds = [node.kind for node in nodes if not isinstance(node, IntegerConv)]
    assert "batch_norm" not in kinds and "elementwise_add" not in kinds
    assert kinds.count("relu") == 1  # of the Linear layer, whose product comes out as 1x1 images
    assert convs["first"].activation.name == "relu"
    assert convs["first"].output_operand is None  # a pool is next
    assert convs["last"].residual is not None and convs["reflecting"].residual is not None


@pytest.mark.parametrize("activation", ["", "relu", "relu6", "hard_swish"])
@pytest.mark.parametrize(("lowest", "highest"), [(-128, 127), (-127, 127), (-20, 100), (0, 255), (0, 15)])
def test_a_bounded_activation_gives_the_integers_of_both_steps(activation, lowest, highest):
    """The activation, then the next grid, against what oneDNN does: the function, then its type."""
    scale = np.float32(0.05)
    operand = DeployedOperand(lowest=lowest, highest=highest, bits=8, signed=lowest < 0, scale=scale)
    given = FusedActivation(activation, *{"relu6": (0.0, 6.0)}.get(activation, (0.0, 0.0)))
    bounded = _bounded(given, operand)
    if bounded is None:
        return
    x = np.linspace(-30, 30, 4001, dtype=np.float32)
    type_lowest, type_highest = (0, 255) if bounded.name in ("relu", "relu6") else (-128, 127)
    found = np.clip(np.rint(_apply(bounded, x) / scale), type_lowest, type_highest)
    expected = np.clip(np.rint(_apply(given, x) / scale), lowest, highest)
    np.testing.assert_array_equal(found, expected)


def test_relu_is_always_bounded():
    operand = DeployedOperand(lowest=-127, highest=127, bits=8, signed=True, scale=np.float32(1))
    assert _bounded(FusedActivation("relu"), operand) == FusedActivation("relu6", 0.0, 127.0)


def _apply(activation: FusedActivation, x: np.ndarray) -> np.ndarray:
    functions = {
        "": lambda: x,
        "relu": lambda: np.maximum(x, 0),
        "relu6": lambda: np.clip(x, activation.alpha, activation.beta),
        "clip": lambda: np.clip(x, activation.alpha, activation.beta),
        "hard_swish": lambda: x * np.clip(x + 3, 0, 6) / 6,
    }
    return functions[activation.name]()
