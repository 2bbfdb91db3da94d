"""With outputs: quantized nothing between the first and the last layer runs in floats, and answers stay.

The engines' own profilers say so. What is left, and why an engine cannot do it in integers:

- ONNX Runtime has no integer HardSigmoid and no HardSwish, which it computes as x · HardSigmoid(x): these,
  the multiplication inside, and the conversion in front of them (DequantizeLinear) are in floats.
- OpenVINO's Multiply of two activations and HardSigmoid (squeeze-excite) compute in fp32 registers, also on
  bytes, and so does the FakeQuantize that rounds a mean over all pixels in front of it.
"""

from __future__ import annotations

import numpy as np
import onnx
import paddle
import pytest
from paddle import Tensor, nn
from paddle.vision.models import mobilenet_v2, mobilenet_v3_small, resnet18

from lowbit import Engine
from lowbit.deploy import LowbitEngine, OnnxRuntimeEngine, OpenVinoEngine
from lowbit.models import build_model
from lowbit.nn import calibrate, prepare
from lowbit.nn.calibration import correct_biases
from lowbit.recipe import make_recipe
from lowbit.recipe.recipe import CalibrationSettings
from tests.support.float_operators import in_onnxruntime, in_openvino
from tests.support.networks import ResidualBlock
from tests.support.onnx_models import answers, normal
from tests.support.processors import skip_unless_exact

SIZE = 64


def recipe(bits: int, **more: str):
    input_ = {"grid": "int8", "sign": "auto", "scaling": "fixed", "observer": "mse", **more}
    weight = {"grid": f"int{bits}-narrow", "granularity": "N", "scaling": "dynamic"}
    rules = [{"forward": {"input": input_, "weight": weight}}]
    return make_recipe({"rules": rules, "calibration": {"steps": 2}, "outputs": "quantized"})


def made(net: nn.Layer, bits: int, size: int = SIZE, **more: str) -> nn.Layer:
    images = [paddle.to_tensor(normal(4, 3, size, size, seed=seed)) for seed in (1, 2)]
    prepare(net, recipe(bits, **more), images[0])
    calibrate(net, images)
    return net.eval()


def with_statistics(net: nn.Layer) -> nn.Layer:
    """Batch norms that have seen images: activations of a usual size in every layer."""
    net.train()
    with paddle.no_grad():
        for seed in range(12):
            net(paddle.to_tensor(normal(8, 3, SIZE, SIZE, seed=100 + seed)))
    return net.eval()


@pytest.mark.parametrize(
    ("build", "in_ort", "in_ov"),
    [
        (mobilenet_v2, set(), set()),
        (resnet18, set(), set()),
        (
            mobilenet_v3_small,
            {"HardSigmoid", "Mul", "DequantizeLinear"},
            {"Multiply", "FakeQuantize", "HardSigmoid"},
        ),
    ],
)
@pytest.mark.parametrize(("target", "bits"), [("avx2", 7), ("vnni", 8)])
def test_no_float_islands(build, in_ort, in_ov, target, bits, write):
    skip_unless_exact(target)
    paddle.seed(0)
    net = made(with_statistics(build(num_classes=10)), bits)
    file = write(net, (3, SIZE, SIZE), target=target)
    images = normal(2, 3, SIZE, SIZE, seed=9)
    assert set(in_onnxruntime(file.path, images)) == in_ort
    assert set(in_openvino(file.path, images)) <= in_ov
    expected = answers(net, images)
    for engine in (OnnxRuntimeEngine(file.path), OpenVinoEngine(file.path)):
        # A step of rounding at a tie, and what the layers behind make of it.
        assert np.abs(engine.run(images) - expected).mean() < 0.1 * expected.std(), engine.name


def test_without_outputs_quantized_floats_are_found(write):
    """The measure above can fail."""
    paddle.seed(0)
    net = resnet18(num_classes=10)
    x = paddle.to_tensor(normal(2, 3, SIZE, SIZE))
    values = recipe(7).model_copy(update={"outputs": "full"})
    prepare(net, values, x)
    calibrate(net, [x])
    file = write(net.eval(), (3, SIZE, SIZE), target="avx2")
    assert in_onnxruntime(file.path, x.numpy())["Add"] and in_openvino(file.path, x.numpy())


class Mixed(nn.Layer):
    """Slices, pads, a concat, a max-pool and a mean on the way from layer to layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.relu, self.pool = nn.Conv2D(3, 8, 3, padding=1), nn.ReLU6(), nn.MaxPool2D(2)
        self.left, self.right = nn.Conv2D(4, 4, 1), nn.Conv2D(4, 4, 3, padding=1)
        self.join, self.mean, self.head = Join(), nn.AdaptiveAvgPool2D(1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.stem(x)))
        x = self.join(self.left(x[:, :4]), self.right(x[:, 4:]))
        return self.head(self.mean(x).flatten(1))


class Join(nn.Layer):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return paddle.concat([a, b], axis=1)


class Tokens(nn.Layer):
    """One token, apart from the others on the way through a convolution, as CvT's class token is."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.conv = nn.Conv2D(3, 8, 8, 8), nn.LayerNorm(8), nn.Conv2D(8, 8, 1)
        self.one, self.product, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.embed(x).flatten(2).transpose([0, 2, 1]))
        first, others = x[:, :1], x[:, 1:]
        others = self.conv(others.transpose([0, 2, 1]).unsqueeze(-1)).squeeze(-1).transpose([0, 2, 1])
        return self.head(self.product(paddle.concat([self.one(first), others], axis=1)).mean(1))


@pytest.mark.parametrize(("target", "bits"), [("avx2", 7), ("vnni", 8)])
def test_tokens_of_two_grids_are_joined_in_every_engine(target, bits, write):
    """OpenVINO cannot compile a Concat of two zero points along axis 1 before a product of matrices."""
    skip_unless_exact(target)
    paddle.seed(0)
    net = made(Tokens(), bits, size=16)
    file = write(net, (3, 16, 16), target=target)
    images = normal(4, 3, 16, 16, seed=3)
    expected = answers(net, images)
    for engine in (OnnxRuntimeEngine(file.path), OpenVinoEngine(file.path), LowbitEngine(file.path)):
        np.testing.assert_allclose(engine.run(images), expected, rtol=0, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("more", [{}, {"scaling": "moving_average", "clip": "pact"}, {"scaling": "learned"}])
@pytest.mark.parametrize(("target", "bits"), [("avx2", 7), ("vnni", 8)])
def test_moved_values_stay_integers(target, bits, more, write):
    skip_unless_exact(target)
    paddle.seed(0)
    net = made(Mixed(), bits, size=16, **more)
    file = write(net, (3, 16, 16), target=target)
    images = normal(4, 3, 16, 16, seed=3)
    assert not in_onnxruntime(file.path, images)
    expected = answers(net, images)
    engines = [OnnxRuntimeEngine(file.path, optimize=optimize) for optimize in (False, True)]
    for engine in (*engines, OpenVinoEngine(file.path)):
        np.testing.assert_allclose(engine.run(images), expected, rtol=0, atol=0.02 * np.abs(expected).max())


def test_a_network_of_lowbit(write):
    skip_unless_exact("avx2")
    paddle.seed(0)
    net = made(build_model("resnet20", 10), 7, size=32)
    file = write(net, (3, 32, 32), target="avx2")
    # The shortcuts' slices and zeros between two blocks are moved as bytes, too.
    assert not set(in_onnxruntime(file.path, normal(1, 3, 32, 32)))


def test_a_branch_is_rounded_before_its_sum_in_every_engine(write):
    """Twice in the file, once in the engines: OpenVINO would leave out a single rounding."""
    skip_unless_exact("avx2")
    paddle.seed(0)
    layers = [nn.Conv2D(3, 4, 1), ResidualBlock(), ResidualBlock(), nn.AdaptiveAvgPool2D(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(4, 5))
    images = [paddle.to_tensor(normal(8, 3, 16, 16, seed=seed)) for seed in (1, 2)]
    values = recipe(7).model_copy(update={"calibration": CalibrationSettings(steps=2, correct_bias=True)})
    prepare(net.eval(), values, images[0])
    calibrate(net, images)
    correct_biases(net, images)
    file = write(net, (3, 16, 16), target="avx2")
    nodes = onnx.load(file.path).graph.node
    readers = {name: node.op_type for node in nodes for name in node.input}
    again = [node for node in nodes if node.op_type == "QuantizeLinear" and "quantizelinear" in node.input[0]]
    assert [readers[node.output[0]] for node in again] == ["DequantizeLinear"] * 2
    x = normal(8, 3, 16, 16, seed=3)
    expected = answers(net, x)
    for engine in (OnnxRuntimeEngine(file.path), OpenVinoEngine(file.path), LowbitEngine(file.path)):
        np.testing.assert_allclose(engine.run(x), expected, rtol=0, atol=1e-5, err_msg=engine.name)
    steps = Engine(file.path).steps(x)
    assert len(steps) == 9 and sum("+Add+" in step for step in steps) == 2, "\n".join(steps)
