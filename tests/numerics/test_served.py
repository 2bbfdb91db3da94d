"""What is exported computes what was trained: quantizers in Paddle Inference give the model's own bits."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.deploy import PaddleEngine, export_model
from lowbit.numerics import (
    fake_quantize,
    lsq_fake_quantize,
    pact_clip,
    parse_grid,
    parse_observer,
    scale_from_range,
)
from tests.support.numerics_twin import F32

GRID = parse_grid("int4")
IMAGES = np.random.default_rng(0).standard_normal((5, 3, 4, 4), dtype=F32) * 2


class Quantizer(nn.Layer):
    """A quantizer between two products whose matrix is 1, so that nothing else rounds."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.one = self.create_parameter([48, 48], default_initializer=nn.initializer.Assign(np.eye(48)))
        self.learned = self.create_parameter([1], default_initializer=nn.initializer.Constant(0.37))
        self.register_buffer("fixed", paddle.to_tensor(F32([0.37])))
        self.register_buffer("channels", paddle.to_tensor(F32([0.1, 0.7, 0.33]).reshape(1, 3, 1, 1)))

    def forward(self, x):
        x = paddle.matmul(x.flatten(1), self.one)
        y = self.quantize(x.reshape([-1, 3, 4, 4]))
        # x is needed after it was quantized, as in a residual network.
        return paddle.matmul(y.flatten(1), self.one) + x

    def quantize(self, x):
        if self.how == "fixed":
            return fake_quantize(x, self.fixed, GRID)
        if self.how == "channels":
            return fake_quantize(x, self.channels, GRID)
        if self.how == "lsq":
            return lsq_fake_quantize(x, self.learned, GRID)
        if self.how == "pact":
            return fake_quantize(pact_clip(x, self.learned), scale_from_range(self.learned, GRID), GRID)
        return fake_quantize(x, parse_observer(self.how)(x, GRID, (1, 2, 3)), GRID)


@pytest.mark.parametrize("how", ["fixed", "channels", "lsq", "pact", "minmax", "mse"])
def test_engine_gives_the_model_s_bits(how, tmp_path):
    model = Quantizer(how)
    expected = model(paddle.to_tensor(IMAGES)).numpy()  # in training, with gradients
    exported = export_model(
        model, tmp_path, model_name=how, image_shape=(3, 4, 4), transform_ops=[], classes=[]
    )
    assert b"pylayer" not in exported.model.read_bytes()
    for onednn in (False, True):
        engine = PaddleEngine(tmp_path, onednn=onednn)
        assert np.array_equal(engine.run(IMAGES), expected)
        assert np.array_equal(engine.run(IMAGES[:1]), expected[:1])


def test_linear_layers_with_a_shortcut(tmp_path):
    """oneDNN lets a division write over its operand; the shortcut would add the quotient."""

    class Residual(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(48, 16), nn.Linear(16, 16)
            self.register_buffer("scale", paddle.to_tensor([0.3]))

        def forward(self, x):
            x = self.first(x.flatten(1))
            return self.second(fake_quantize(x, self.scale, GRID)) + x

    paddle.seed(0)
    model = Residual()
    expected = model(paddle.to_tensor(IMAGES)).numpy()
    export_model(model, tmp_path, model_name="res", image_shape=(3, 4, 4), transform_ops=[], classes=[])
    np.testing.assert_allclose(PaddleEngine(tmp_path).run(IMAGES), expected, rtol=1e-5, atol=1e-6)


def test_saved_while_gradients_are_recorded(tmp_path):
    model = Quantizer("lsq")
    expected = model(paddle.to_tensor(IMAGES)).numpy()
    spec = [paddle.static.InputSpec([None, 3, 4, 4], "float32", "x")]
    paddle.jit.save(model, str(tmp_path / "inference"), input_spec=spec)
    assert np.array_equal(PaddleEngine(tmp_path).run(IMAGES), expected)


def test_gradients_in_a_static_program_are_the_same():
    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.create_parameter([3, 3, 1, 1])
            self.step = self.create_parameter([1], default_initializer=nn.initializer.Constant(0.2))
            self.alpha = self.create_parameter([1], default_initializer=nn.initializer.Constant(0.9))

        def forward(self, x):
            weight = fake_quantize(self.weight, parse_observer("mse")(self.weight, GRID, (1, 2, 3)), GRID)
            y = pact_clip(nn.functional.conv2d(x, weight), self.alpha)
            return lsq_fake_quantize(y, self.step, GRID)

    paddle.seed(0)
    net = Net()
    images = paddle.to_tensor(IMAGES)
    (net(images) ** 2).sum().backward()
    expected = [parameter.grad.numpy() for parameter in net.parameters()]
    net.clear_gradients()
    spec = [paddle.static.InputSpec([None, 3, 4, 4], "float32")]
    static = paddle.jit.to_static(net, input_spec=spec, full_graph=True)
    (static(images) ** 2).sum().backward()
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        np.testing.assert_allclose(parameter.grad.numpy(), gradient, rtol=1e-5)
