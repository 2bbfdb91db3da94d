from __future__ import annotations

import paddle
import paddle.nn.functional as F
import pytest

from tests.support.onnx_models import Net


def by_the_batchs_size(x):
    """Paddle makes operators of `x.shape[0]` where it finds the source, which it does not for a lambda."""
    y = x.reshape([x.shape[0], -1])
    return y.reshape([x.shape[0], x.shape[1] * 2, -1])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape([-1, 6, 32]),
        lambda x: x.reshape([0, 2, -1]),
        by_the_batchs_size,
        lambda x: x.reshape([x.shape[0], 3, 64]).transpose([0, 2, 1]),
        lambda x: x.flatten(2),
        lambda x: x.transpose([0, 2, 3, 1]),
        lambda x: x.mean([2, 3], keepdim=True).squeeze([2, 3]),
        lambda x: x.mean([2, 3], keepdim=True).squeeze(-1),
        lambda x: x.unsqueeze(1) * 2.0,
        lambda x: paddle.concat([x, x[:, :1], paddle.zeros_like(x)], axis=1),
        lambda x: paddle.stack([x, -x], axis=1),
        lambda x: x[:, :, ::2, 1::3],
        lambda x: x[:, 1],
        lambda x: x[:, -2:, 1:-1],
        lambda x: paddle.concat(paddle.split(x, [1, 2], axis=1)[::-1], axis=1),
        lambda x: paddle.add(*paddle.split(x, 2, axis=3)),
        lambda x: paddle.add(*paddle.chunk(x, 2, axis=2)),
        lambda x: paddle.concat([x.expand([-1, 3, 8, 8]), x], axis=1),
        lambda x: paddle.roll(x, 3, axis=2),
    ],
)
def test_moving_numbers(function, same_in_engines):
    same_in_engines(Net(function))


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding_of_images(mode, same_in_engines):
    same_in_engines(Net(lambda x: F.pad(x, [1, 2, 3, 0], mode=mode)))


def test_padding_of_channels_with_a_value(same_in_engines):
    same_in_engines(Net(lambda x: F.pad(x, [0, 0, 1, 2, 0, 0, 0, 0], value=0.5)))
