from __future__ import annotations

import numpy as np
import onnx
import paddle
import pytest
from paddle import nn

import lowbit
from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine
from lowbit.errors import LowbitError
from lowbit.models import build_model, ppcls_is_installed
from lowbit.nn import Matmul, QuantizedMatmul, preparation_of, quantization_mode

W8A8 = {
    "rules": [
        {
            "forward": {
                "input": {"grid": "int8", "scaling": "moving_average"},
                "weight": {"grid": "int8-narrow", "granularity": "N"},
            }
        }
    ],
    "matmul": {"operands": {"grid": "int8"}},
    "calibration": {"steps": 2},
}
needs_ppcls = pytest.mark.skipif(
    not ppcls_is_installed(), reason="PaddleClas's package ppcls is not installed"
)


class TinyAttention(nn.Layer):
    """Attention of a user's own, with lowbit's layers for its products."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)
        self.qk, self.av = Matmul(), Matmul()

    def forward(self, x):
        q, k, v = paddle.split(self.qkv(x.flatten(2).transpose([0, 2, 1])), 3, axis=-1)
        weights = nn.functional.softmax(self.qk(q, k.transpose([0, 2, 1])) * 8**-0.5)
        return self.head(self.av(weights, v).mean(1))


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal([count, 8, 4, 4], dtype=np.float32)


def tiny(**changes) -> nn.Layer:
    paddle.seed(0)
    net = lowbit.quantize(TinyAttention(), W8A8 | changes, data=[images(8, seed) for seed in (1, 2)])
    net.eval()
    return net


def test_products_are_quantized_and_softmax_is_unsigned():
    net = tiny()
    assert isinstance(net.qk, QuantizedMatmul) and isinstance(net.av, QuantizedMatmul)
    assert net.av.left_quantizer.grid().name == "uint8"  # softmax's output
    assert net.qk.left_quantizer.grid().name == "int8"
    assert "2 products of two activations" in str(preparation_of(net))


def test_the_product_is_that_of_the_rounded_operands():
    net = tiny()
    x, y = (paddle.to_tensor(images(2, seed).reshape([2, 8, 16])) for seed in (3, 4))
    y = y.transpose([0, 2, 1])
    expected = np.ones(1)
    for side, operand in (("left", x), ("right", y)):
        integers, scale = getattr(net.qk, f"{side}_quantizer").integers(operand)
        expected = (
            (integers.numpy() * scale.numpy()) if side == "left" else expected @ (integers * scale).numpy()
        )
    np.testing.assert_allclose(net.qk(x, y).numpy(), expected, rtol=1e-5, atol=1e-5)
    with quantization_mode(net, "full"):
        np.testing.assert_allclose(net.qk(x, y).numpy(), paddle.matmul(x, y).numpy(), rtol=1e-5, atol=1e-5)


def test_training_reaches_both_operands():
    net = tiny()
    net.train()
    net(paddle.to_tensor(images(4))).sum().backward()
    assert float(net.qkv.weight.grad.abs().sum()) > 0


def test_low_precision_puts_the_gradient_on_a_grid():
    net = tiny(matmul={"operands": {"grid": "int8"}, "grad_output": {"grid": "int4"}})
    net.train()
    net.qk.left_quantizer.eval(), net.qk.right_quantizer.eval()  # their ranges stay as they are
    x, y = (paddle.to_tensor(images(2, seed).reshape([2, 8, 16]), stop_gradient=False) for seed in (3, 4))
    right = y.transpose([0, 2, 1])
    z = net.qk(x, right)
    weights = paddle.to_tensor(np.random.default_rng(5).standard_normal(z.shape).astype("float32"))
    (z * weights).sum().backward()
    integers, scale = net.qk.gradient_quantizer.integers(weights)
    rounded = net.qk.right_quantizer(right).detach()
    seen = paddle.matmul(integers * scale, rounded, transpose_y=True)
    moved = (net.qk.left_quantizer(x.detach()) - x.detach()).abs()
    inside = (moved <= 0.51 * net.qk.left_quantizer.scale()).astype("float32")  # what is not clipped
    np.testing.assert_allclose(
        (x.grad * inside).numpy(), (seen * inside).numpy(), rtol=1e-4, atol=1e-4 * float(seen.abs().max())
    )


def test_engines_multiply_the_same_integers(tmp_path):
    net = tiny()
    lowbit.export(net, tmp_path, example=images(3), formats="onnx")
    x = images(16, seed=9)
    own = net(paddle.to_tensor(x)).numpy()
    kinds = [node.op_type for node in onnx.load(tmp_path / "inference.onnx").graph.node]
    assert kinds.count("QuantizeLinear") == 2 + 4  # two Linear layers, two products with two operands each
    for engine in (
        OnnxRuntimeEngine(tmp_path / "inference.onnx"),
        OpenVinoEngine(tmp_path / "inference.onnx"),
    ):
        np.testing.assert_allclose(engine.run(x), own, atol=2e-2 * np.abs(own).max())
    lowbit.export(net, tmp_path / "paddle", example=images(3), formats="paddle")


def test_a_model_without_products_is_an_error():
    with pytest.raises(LowbitError, match=r"no product of two activations.*lowbit\.nn\.Matmul"):
        lowbit.quantize(nn.Sequential(nn.Linear(4, 2)), W8A8)


@pytest.mark.parametrize(
    ("matmul", "message"),
    [
        ({"operands": {"grid": "full"}}, "integer grid"),
        ({"operands": {"grid": "int8", "granularity": "C"}}, "per-tensor"),
        ({"operand": {"grid": "int8"}}, "operand"),
    ],
)
def test_wrong_settings(matmul, message):
    with pytest.raises(LowbitError, match=message):
        lowbit.Recipe.from_dict(W8A8 | {"matmul": matmul}) if hasattr(
            lowbit.Recipe, "from_dict"
        ) else lowbit.quantize(TinyAttention(), W8A8 | {"matmul": matmul})


@needs_ppcls
@pytest.mark.parametrize(
    ("name", "size", "kwargs", "count"),
    [
        ("DeiT_tiny_patch16_224", 32, {"img_size": 32}, 24),
        pytest.param("SwinTransformer_tiny_patch4_window7_224", 32, {}, 24, marks=pytest.mark.slow),
    ],
)
def test_known_attention_of_paddleclas(name, size, kwargs, count):
    net = build_model(name, 4, **kwargs)
    net.eval()
    x = np.random.default_rng(0).standard_normal([2, 3, size, size], dtype=np.float32)
    before = net(paddle.to_tensor(x)).numpy()
    net = lowbit.quantize(net, W8A8, data=[x])
    net.eval()
    prepared = preparation_of(net).products
    assert len(prepared.names) == count and not prepared.left_alone
    with quantization_mode(net, "full"):
        np.testing.assert_allclose(net(paddle.to_tensor(x)).numpy(), before, atol=1e-4 * np.abs(before).max())
