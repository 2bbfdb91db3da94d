from __future__ import annotations

import paddle
import paddle.nn.functional as F
import pytest

from tests.support.onnx_models import Net


@pytest.mark.parametrize(
    "function",
    [
        lambda x: paddle.index_select(x, paddle.to_tensor([2, 0]), axis=1),
        lambda x: paddle.gather(x, paddle.to_tensor([2, 0, 0]), axis=1),
        lambda x: paddle.gather(x, paddle.to_tensor([[2], [0]]), axis=3),
        lambda x: x[:, [2, 0]],
        lambda x: paddle.argmax(x, 1).astype("float32"),
        lambda x: paddle.argmin(x, 2, keepdim=True).astype("float32"),
        lambda x: paddle.argmax(x, 1, dtype="int32").astype("float32"),
        lambda x: paddle.topk(x, 2, axis=1)[0],
        lambda x: paddle.topk(x, 3, axis=-1, largest=False)[1].astype("float32"),
        lambda x: paddle.sort(x, axis=2),
        lambda x: paddle.take_along_axis(x, paddle.argsort(x, 1, descending=True), 1),
        lambda x: F.one_hot(paddle.argmax(x.flatten(1), 1), 192),
        lambda x: paddle.cumsum(x, axis=1),
    ],
)
def test_picking_numbers(function, same_in_engines):
    same_in_engines(Net(function))


@pytest.mark.parametrize("padding_idx", [None, 2])
def test_embedding(padding_idx, same_in_engines):
    table = paddle.nn.Embedding(3, 5, padding_idx=padding_idx)
    same_in_engines(Net(lambda x, table: table(paddle.argmax(x, 1)), table))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: paddle.where(x > 0.1, x, x * 2),
        lambda x: x * (x <= 0.5).astype("float32") + (x < -1).astype("float32") - (x >= 1).astype("float32"),
        lambda x: (x == x.max(1, keepdim=True)).astype("float32"),
        lambda x: (x != x.max(1, keepdim=True)).astype("float32"),
        lambda x: paddle.logical_and(x > 0, x < 1).astype("float32"),
        lambda x: paddle.logical_or(x < 0, paddle.logical_not(x < 1)).astype("float32"),
        lambda x: paddle.masked_fill(x, x > 0, 0.5),
        lambda x: x % 0.7,
        lambda x: x // 0.7,
        lambda x: paddle.sign(x) + paddle.erf(x) + paddle.sin(x) * paddle.cos(x),
        lambda x: paddle.reciprocal(x.abs() + 1),
        lambda x: F.selu(x) + F.log_sigmoid(x),
        lambda x: F.glu(x.tile([1, 2, 1, 1]), axis=1),
    ],
)
def test_comparing_and_choosing(function, same_in_engines):
    same_in_engines(Net(function))
