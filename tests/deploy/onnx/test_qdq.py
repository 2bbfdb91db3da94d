from __future__ import annotations

import json

import numpy as np
import onnx
import paddle
import paddle.nn.functional as F
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paddle import nn

from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine
from lowbit.deploy.engines.lowbit_engine import LowbitEngine
from lowbit.deploy.onnx.graph import Graph, QuantizedConstant
from lowbit.deploy.onnx.qdq import never_negative
from lowbit.deploy.onnx.targets import activation_type, describe_form, resolve_target, weight_type
from lowbit.errors import LowbitError
from lowbit.machine.cpu import PROCESSORS, CpuInfo
from lowbit.nn import DeployedOperand
from tests.support.onnx_models import Net, answers, normal, quantized
from tests.support.processors import exact_targets, skip_unless_exact

SHAPE = (4, 7, 7)
UNSIGNED = {"grid": "int8", "sign": "auto", "scaling": "fixed"}


def rules(bits_x: int, bits_w: int, *, narrow: bool = False, scaling: str = "dynamic") -> dict:
    weight = {"grid": f"int{bits_w}{'-narrow' if narrow else ''}", "granularity": "N", "scaling": scaling}
    return {"rules": [{"forward": {"input": UNSIGNED | {"grid": f"int{bits_x}"}, "weight": weight}}]}


@pytest.fixture(params=["avx2", "vnni"])
def target(request) -> str:
    """The test runs for both, as far as the engines here compute it exactly."""
    skip_unless_exact(request.param)
    return request.param


def check(model: nn.Layer, write, target: str, *, shape=SHAPE, count=3) -> onnx.ModelProto:
    """ONNX Runtime, with and without its optimisations, and OpenVINO answer as the model does."""
    made = write(model, shape, target=target)
    images = normal(count, *shape, seed=5)
    expected = answers(model, images)
    found = [OnnxRuntimeEngine(made.path, optimize=optimize).run(images) for optimize in (False, True)]
    for threads in (None, 1):
        engine = OpenVinoEngine(made.path, threads=threads)
        # Compiled for this number of images, and for any number.
        found += [engine.run(images), *engine.run_with(images, []).values()]
    for place, one in enumerate(found):
        # A number exactly between two integers may be rounded either way: few may differ, by little.
        # Of uint8 weights of convolutions OpenVINO merges a rounding differently.
        limit = 1e-2 if target == "avx2" and place > 1 else 1e-4
        assert np.quantile(np.abs(one - expected), 0.98) <= limit * np.abs(expected).max(), place
    return onnx.load(made.path)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bits_x=st.integers(2, 8),
    bits_w=st.integers(2, 8),
    narrow=st.booleans(),
    groups=st.sampled_from([1, 2, 4]),
    stride=st.integers(1, 2),
    padding=st.sampled_from([0, 1, [0, 1, 1, 2]]),
    dilation=st.integers(1, 2),
    relu=st.booleans(),
    target=st.sampled_from([target for target in exact_targets() if target != "gpu"]),
)
def test_convolutions(write, bits_x, bits_w, narrow, groups, stride, padding, dilation, relu, target):
    paddle.seed(3)
    layers = nn.Conv2D(4, 8, 3, stride, padding, dilation, groups), nn.Conv2D(8, 4, 1, bias_attr=False)

    def forward(x, first, second):
        return second(F.relu(first(F.relu(x) if relu else x)))

    model = quantized(Net(forward, *layers), SHAPE, **rules(bits_x, bits_w, narrow=narrow))
    check(model, write, target)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bits=st.integers(2, 8), groups=st.sampled_from([1, 2, 4]), stride=st.integers(1, 2))
def test_transposed_convolutions(write, target, bits, groups, stride):
    paddle.seed(3)
    layers = nn.Conv2DTranspose(4, 4, 3, stride, groups=groups), nn.BatchNorm2D(4)
    layers[1]._mean.set_value(paddle.rand([4]))
    layers[1].weight.set_value(paddle.rand([4]) + 0.5)
    model = Net(lambda x, deconv, norm: norm(deconv(x)), *layers)
    check(quantized(model, SHAPE, **rules(8, bits, narrow=True)), write, target)


@pytest.mark.parametrize("bits", [2, 4, 5, 8])
def test_linear(bits, write, target):
    model = Net(lambda x, a, b: b(F.relu(a(x.flatten(1)))), nn.Linear(196, 16), nn.Linear(16, 5))
    check(quantized(model, SHAPE, **rules(bits, bits)), write, target)


def test_small_linear_layers_one_behind_the_other(write, target):
    """OpenVINO's snippets compute nonsense there, for a few rows for each thread."""
    model = quantized(
        Net(lambda x, a, b: b(F.relu(a(x.flatten(1)))), nn.Linear(36, 16), nn.Linear(16, 8)),
        (36, 1, 1),
        **rules(8, 8, narrow=True, scaling="fixed"),
    )
    made = write(model, (36, 1, 1), target=target)
    for count in (1, 2, 3, 6, 12):
        images = normal(count, 36, 1, 1, seed=5)
        expected = answers(model, images)
        for threads in (1, 2, 4):
            found = OpenVinoEngine(made.path, threads=threads).run(images)
            np.testing.assert_allclose(
                found, expected, atol=0.02 * np.abs(expected).max(), err_msg=str(threads)
            )


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("inputs", [17, 33])
def test_linear_in_4_bits_with_an_odd_number_of_inputs(bits, inputs, write, target):
    """OpenVINO unpacks two integers of a byte wrongly there, with five rows or more."""
    model = Net(lambda x, a, b: b(F.relu(a(x.flatten(1)))), nn.Linear(inputs, 10), nn.Linear(10, 5))
    check(quantized(model, (inputs, 1, 1), **rules(8, bits)), write, target, shape=(inputs, 1, 1), count=6)


class Tokens(nn.Layer):
    """A convolution whose pixels become tokens; with one more token in front, if wanted."""

    def __init__(self, *, joined: bool, two: bool, behind=nn.Identity, bias_attr=False) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2D(4, 16, 2, stride=2, bias_attr=bias_attr), behind())
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 5)
        self.token = self.create_parameter([1, 1, 16])
        self.joined, self.two = joined, two

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose([0, 2, 1])
        if self.joined:
            x = paddle.concat([self.token.expand([x.shape[0], 1, 16]), x], 1)
        x = self.first(x)
        return (self.second(F.relu(x)) if self.two else x).mean(1)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("outputs", ["full", "quantized"])
@pytest.mark.parametrize("bias_attr", [False, nn.initializer.Normal(0.0, 0.5)])
@pytest.mark.parametrize("behind", [nn.Identity, nn.ReLU])
def test_tokens_of_a_convolution(behind, bias_attr, outputs, two, joined, write, target):
    paddle.seed(0)
    made = {"outputs": outputs} | rules(8, 8, narrow=True, scaling="fixed")
    model = Tokens(joined=joined, two=two, behind=behind, bias_attr=bias_attr)
    model.conv[0].weight.set_value(model.conv[0].weight * (0.2 + paddle.rand([16, 1, 1, 1])))
    check(quantized(model, SHAPE, **made), write, target)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.gelu(x.mean(1)),
        lambda x: x * x.mean(1, keepdim=True),
        lambda x: paddle.concat([x.mean(1, keepdim=True), x], 1),
        lambda x: F.gelu(x.sum(1)),
        lambda x: x.mean(1),
    ],
)
def test_means_and_sums_of_tokens(function, write, target):
    """OpenVINO rounds and clips them where no rounding is next."""
    paddle.seed(0)
    net = Net(
        lambda x, conv, linear: linear(function(F.relu(conv(x)).flatten(2).transpose([0, 2, 1]))),
        *(nn.Conv2D(4, 16, 2, stride=2), nn.Linear(16, 5)),
    )
    made = {"outputs": "quantized"} | rules(8, 8, narrow=True, scaling="fixed")
    check(quantized(net, SHAPE, **made), write, target)


@pytest.mark.parametrize("behind", [nn.ReLU, lambda: nn.MaxPool2D(2), lambda: nn.AvgPool2D(2)])
@pytest.mark.parametrize("bias_attr", [False, nn.initializer.Constant(0.0)])
def test_tokens_of_what_a_convolution_gives(bias_attr, behind, write, target):
    paddle.seed(0)
    net = Tokens(joined=False, two=True, behind=behind, bias_attr=bias_attr)
    check(quantized(net, SHAPE, **rules(8, 8, narrow=True, scaling="fixed")), write, target)


@pytest.mark.parametrize("outputs", ["full", "quantized"])
def test_a_convolution_behind_a_concatenation(outputs, write, target):
    model = Net(
        lambda x, a, b: b(paddle.concat([a(x), x], 1)), nn.Conv2D(4, 5, 3, padding=1), nn.Conv2D(9, 6, 1)
    )
    check(quantized(model, SHAPE, **{"outputs": outputs}, **rules(8, 8, narrow=True)), write, target)


@pytest.mark.parametrize("outputs", ["full", "quantized"])
def test_linear_behind_a_concatenation(outputs, write, target):
    model = Net(
        lambda x, a, b: b(paddle.concat([a(x), x], 1)), nn.Conv2D(4, 4, 3, padding=1), nn.Linear(7, 5)
    )
    check(quantized(model, SHAPE, **{"outputs": outputs}, **rules(8, 8, narrow=True)), write, target)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("outputs", ["full", "quantized"])
def test_transposed_convolution(outputs, relu, write, target):
    model = Net(
        lambda x, a, b: b(F.relu(a(x)) if relu else a(x)),
        nn.Conv2D(4, 8, 3, stride=2),
        nn.Conv2DTranspose(8, 6, 2, stride=2),
    )
    check(quantized(model, SHAPE, **{"outputs": outputs}, **rules(8, 8, narrow=True)), write, target)


def test_weights_alone_in_8_bits(write, target):
    """ONNX Runtime rounds the inputs of such a layer to 8 bits, unless it is told not to."""
    recipe = {"rules": [{"forward": {"weight": {"grid": "int8", "granularity": "N"}}}]}
    check(quantized(Net(lambda x, a: a(x.flatten(1)), nn.Linear(196, 5)), SHAPE, **recipe), write, target)


def test_linear_on_more_axes(write, target):
    check(quantized(Net(lambda x, a: a(x), nn.Linear(7, 5)), SHAPE, **rules(8, 8)), write, target)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes(mode, write, target):
    layer = nn.Conv2D(4, 4, 3, padding=1, padding_mode=mode)
    check(quantized(Net(lambda x, conv: conv(x), layer), SHAPE, **rules(8, 4)), write, target)


def test_pact_bounds_inside_of_the_grid(write, target):
    config = {"activation_preprocess_type": "PACT", "weight_bits": 6, "activation_bits": 8}
    model = quantized(Net(lambda x, conv: conv(x), nn.Conv2D(4, 4, 3)), SHAPE, **config)
    model.layers[0].input_quantizer.alpha.value.set_value(paddle.full([1], 0.5))
    written = check(model, write, target)
    assert [node.op_type for node in written.graph.node].count("Clip") == 1


ASYMMETRIC = {"grid": "int8", "sign": "asymmetric", "scaling": "learned"}


def asymmetric(bits: int, *offsets: float) -> nn.Layer:
    """Convolutions behind hard-swish, with learned offsets (LSQ+) as training may have left them."""
    paddle.seed(3)
    layers = nn.Conv2D(4, 8, 3, padding=1), nn.Conv2D(8, 8, 3, padding=1, groups=8), nn.Conv2D(8, 4, 1)

    def forward(x, first, second, third):
        return third(F.hardswish(second(F.hardswish(first(x)))))

    weight = {"grid": f"int{min(bits, 7)}", "granularity": "N"}
    recipe = {"rules": [{"forward": {"input": ASYMMETRIC | {"grid": f"int{bits}"}, "weight": weight}}]}
    model = quantized(Net(forward, *layers), SHAPE, **recipe)
    for layer, offset in zip(layers, offsets, strict=False):
        layer.input_quantizer.offset.value.set_value(paddle.full([1], offset))
    return model


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("offsets", [(), (-1.234, -0.3, 0.0), (-99.0, 5.0, -0.4)])
def test_learned_offsets_are_zero_points(bits, offsets, write, target):
    model = asymmetric(bits, *offsets)
    written = check(model, write, target)
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in written.graph.initializer}
    stored = [
        int(constants[node.input[2]]) for node in written.graph.node if node.op_type == "QuantizeLinear"
    ]
    expected = [layer.input_quantizer.grid().zero_point for layer in model.layers]
    # Without a zero point it is the unsigned grid.
    assert stored == expected
    assert any(expected)
    images = normal(3, *SHAPE, seed=5)
    found, wanted = LowbitEngine(write(model, SHAPE, target=target).path).run(images), answers(model, images)
    assert np.quantile(np.abs(found - wanted), 0.98) <= 1e-4 * np.abs(wanted).max()


def test_gpus_have_no_zero_points(write):
    made = write(asymmetric(4, -1.0, -0.3, -0.3), SHAPE, target="gpu")
    graph = onnx.load(made.path).graph
    zeros = [onnx.numpy_helper.to_array(one) for one in graph.initializer if one.name.endswith(".zero")]
    assert zeros and not any(zero.any() for zero in zeros)
    with pytest.raises(LowbitError, match="zero point"):
        write(asymmetric(8, -0.1, -0.3, -0.3), SHAPE, target="gpu")


def test_weights_alone(write, target):
    only = [{"forward": {"input": {"grid": "full"}, "weight": {"grid": "int4", "granularity": "N"}}}]
    written = check(quantized(Net(lambda x, c: c(x), nn.Conv2D(4, 4, 3)), SHAPE, rules=only), write, target)
    assert "QuantizeLinear" not in [node.op_type for node in written.graph.node]


def test_a_tensor_is_quantized_once_for_layers_with_the_same_scale(write, target):
    layers = nn.Conv2D(4, 4, 3), nn.Conv2D(4, 4, 3)
    model = quantized(Net(lambda x, a, b: a(x) + b(x), *layers), SHAPE, **rules(8, 8))
    written = check(model, write, target)
    kinds = [node.op_type for node in written.graph.node]
    assert kinds.count("QuantizeLinear") == 1
    described = json.loads(written.metadata_props[0].value)["layers"]
    assert described["layers.0"]["input"] == described["layers.1"]["input"] == "layers.0.input"


def test_a_layer_that_is_called_twice(write, target):
    layer = nn.Conv2D(4, 4, 3, padding=1)
    model = quantized(Net(lambda x, a: a(F.relu(a(x))), layer), SHAPE, **rules(8, 8))
    written = check(model, write, target)
    described = json.loads(written.metadata_props[0].value)["layers"]
    assert set(described) == {"layers.0", "layers.0:2"}
    assert described["layers.0:2"]["input"] == "layers.0.input:2"


def test_biases_are_int32_and_exact(write, target):
    conv = nn.Conv2D(4, 4, 3)
    conv.bias.set_value(paddle.to_tensor([0.0, 1e-30, -123.456, 1e5]))
    written = check(quantized(Net(lambda x, c: F.relu(c(x)), conv), SHAPE, **rules(8, 8)), write, target)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in written.graph.initializer}
    integers = stored["layers.0.bias.integers"]
    assert integers.dtype == np.int32
    np.testing.assert_array_equal(integers * stored["layers.0.bias.scale"], conv.bias.numpy())


@pytest.mark.parametrize("sign", ["auto", "fixed"])
def test_gpus_get_signed_inputs_without_zero_points(sign, write):
    skip_unless_exact("gpu")
    grid = UNSIGNED | {"grid": "int7" if sign == "auto" else "int8", "sign": sign}
    both = [{"forward": {"input": grid, "weight": {"grid": "int8", "granularity": "N"}}}]
    model = Net(lambda x, a, b: b(F.relu(a(x))), nn.Conv2D(4, 4, 3), nn.Conv2D(4, 4, 3))
    written = check(quantized(model, SHAPE, rules=both), write, "gpu")
    for tensor in written.graph.initializer:
        if tensor.name.endswith(".zero"):
            values = onnx.numpy_helper.to_array(tensor)
            assert values.dtype == np.int8 and not values.any()
    assert not any("bias.integers" in tensor.name for tensor in written.graph.initializer)


@pytest.fixture
def graph():
    return Graph("x", [-1, 3, 4, 4])


def add(graph, kind, *inputs, **attributes):
    return graph.add(kind, inputs, shape=[-1, 3, 4, 4], **attributes)


def test_of_the_input_nothing_is_known(graph):
    assert not never_negative(graph, "x")
    assert not never_negative(graph, add(graph, "Conv", "x", graph.constant(np.ones([3, 3, 1, 1]))))


@pytest.mark.parametrize("kind", ["Relu", "Sigmoid", "HardSigmoid", "Softmax"])
def test_activations(graph, kind):
    assert never_negative(graph, add(graph, kind, "x"))


def test_what_keeps_it(graph):
    relu = add(graph, "Relu", "x")
    assert never_negative(graph, add(graph, "MaxPool", add(graph, "Reshape", relu)))
    assert never_negative(graph, add(graph, "Add", relu, graph.constant(np.float32(1))))
    assert never_negative(graph, add(graph, "Concat", relu, relu, axis=1))


def test_what_loses_it(graph):
    relu = add(graph, "Relu", "x")
    assert not never_negative(graph, add(graph, "Add", relu, "x"))
    assert not never_negative(graph, add(graph, "Add", relu, graph.constant(np.float32(-1))))
    assert not never_negative(graph, add(graph, "Sub", relu, relu))
    assert not never_negative(graph, add(graph, "HardSwish", relu))


@pytest.mark.parametrize(("lowest", "expected"), [(0.0, True), (-1.0, False)])
def test_clip(graph, lowest, expected):
    clipped = add(graph, "Clip", "x", graph.constant(np.float32(lowest)), graph.constant(np.float32(6)))
    assert never_negative(graph, clipped) is expected


@pytest.mark.parametrize(("filled", "expected"), [(0.0, True), (-1.0, False)])
def test_pad(graph, filled, expected):
    relu, pads = add(graph, "Relu", "x"), graph.constant(np.zeros(8, np.int64))
    padded = add(graph, "Pad", relu, pads, graph.constant(np.float32(filled)))
    assert never_negative(graph, padded) is expected


@pytest.mark.parametrize(
    ("zero", "expected"), [(np.uint8(0), True), (np.uint8(128), False), (np.int8(0), False)]
)
def test_values_of_integers(graph, zero, expected):
    parts = [graph.constant(np.float32(0.1)), graph.constant(zero)]
    integers = add(graph, "QuantizeLinear", "x", *parts)
    assert never_negative(graph, add(graph, "DequantizeLinear", integers, *parts)) is expected


def cpu(architecture: str, *features: str) -> CpuInfo:
    known = frozenset(features)
    return CpuInfo(
        vendor="", model="", cores=1, machine_cores=1, memory=1, features=known, architecture=architecture
    )


def weight(bits: int, signed: bool = True) -> QuantizedConstant:
    return QuantizedConstant(np.zeros([2, 1], np.int16), np.ones([1, 1], np.float32), bits, signed)


def operand(bits: int, signed: bool) -> DeployedOperand:
    highest = (1 << (bits - signed)) - 1
    return DeployedOperand(
        lowest=-highest if signed else 0, highest=highest, bits=bits, signed=signed, scale=np.float32(1)
    )


@pytest.mark.parametrize(
    ("features", "machine", "expected"),
    [
        (["avx2"], "x86_64", "avx2"),
        (["avx2", "avx512f"], "x86_64", "avx2"),
        (["avx2", "avx_vnni"], "x86_64", "vnni"),
        (["avx2", "avx512_vnni"], "AMD64", "vnni"),
        (["asimd"], "aarch64", "arm"),
        ([], "arm64", "arm"),
    ],
)
def test_this_machine(features, machine, expected):
    assert resolve_target(None, cpu(machine, *features)) == expected


@pytest.mark.parametrize("name", PROCESSORS)
def test_another_processor(name, monkeypatch):
    monkeypatch.setenv("LOWBIT_CPU", name)
    assert resolve_target(None) == ("avx2" if name.endswith("-avx2") else "vnni")


def test_a_misspelt_target():
    with pytest.raises(LowbitError, match='did you mean "vnni"'):
        resolve_target("vnn")


@pytest.mark.parametrize("target", ["avx2", "vnni", "arm", "gpu"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_products_never_saturate(target, bits):
    kind, zero = weight_type(weight(bits), target)
    if target == "avx2" and kind == "int8":  # two products of u8 and s8 in 16 bits
        assert 2 * 255 * (1 << (bits - 1)) <= 2**15
    assert (kind, zero) in {("int4", 0), ("int8", 0), ("uint8", 128)}
    assert kind.endswith("4") is (bits <= 4)


@pytest.mark.parametrize(
    ("target", "signed", "positive", "direct", "expected"),
    [
        ("vnni", True, False, True, ("int8", 0)),
        ("vnni", True, True, True, ("uint8", 0)),
        ("vnni", False, True, False, ("uint8", 0)),
        ("vnni", True, False, False, ("uint8", 128)),
        ("avx2", True, False, False, ("uint8", 128)),
        ("avx2", True, False, True, ("uint8", 128)),
        ("arm", True, False, False, ("int8", 0)),
        ("gpu", True, True, True, ("int8", 0)),
        ("gpu", False, True, True, ("int8", 0)),
    ],
)
def test_inputs(target, signed, positive, direct, expected):
    found = activation_type(operand(7, signed), target, positive=positive, direct=direct, layer="")
    assert found == expected


def test_gpus_know_signed_inputs_only():
    with pytest.raises(LowbitError, match=r'layer "conv" is on the grid uint8.*sign: fixed'):
        activation_type(operand(8, False), "gpu", positive=True, direct=True, layer="conv")


def test_the_form_in_words():
    text = describe_form("avx2", [weight(8), weight(4)], [operand(8, True)])
    assert "8-bit weights as uint8 with zero point 128" in text
    assert "4-bit weights as int4" in text
