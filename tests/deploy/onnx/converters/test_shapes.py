from __future__ import annotations

import onnx
import paddle
import paddle.nn.functional as F
import pytest

from lowbit.errors import LowbitError
from tests.support.onnx_models import Net


def by_the_batchs_size(x):
    """Paddle makes operators of `x.shape[0]` where it finds the source, which it does not for a lambda."""
    y = x.reshape([x.shape[0], -1])
    return y.reshape([x.shape[0], x.shape[1] * 2, -1])


class ClassToken(paddle.nn.Layer):
    """ViT's: one token more, as often as there are images."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.token = way, self.create_parameter([1, 1, 3])

    def forward(self, x):
        tokens = x.flatten(2).transpose([0, 2, 1])
        if self.way == "shape()":
            token = self.token.expand([paddle.shape(tokens)[0], -1, -1])
        elif self.way == "shape":
            token = self.token.expand((tokens.shape[0], -1, -1))
        elif self.way == "tile":
            token = self.token.tile([tokens.shape[0], 1, 1])
        elif self.way == "expand_as":
            token = self.token.expand_as(tokens[:, :1])
        else:
            token = paddle.zeros([tokens.shape[0], 1, 3]) + self.token
        return paddle.concat([token, tokens], axis=1).flatten(1)


@pytest.mark.parametrize("way", ["shape()", "shape", "tile", "expand_as", "zeros"])
def test_class_token(way, same_in_engines):
    same_in_engines(ClassToken(way))


class Windows(paddle.nn.Layer):
    """Swin's: windows of 4×4 pixels become part of the batch and come back."""

    def forward(self, x):
        b, c, h, w = x.shape
        y = x.reshape([b, c, h // 4, 4, w // 4, 4]).transpose([0, 2, 4, 3, 5, 1]).reshape([-1, 16, c])
        y = paddle.matmul(y, y, transpose_y=True)
        back = y.reshape([y.shape[0] // ((h // 4) * (w // 4)), h // 4, w // 4, 16, -1])
        return back.transpose([0, 3, 1, 2, 4]).flatten(1)


class Heads(paddle.nn.Layer):
    """Attention: sizes that come out of a reshape by the batch's size."""

    def forward(self, x):
        tokens = x.flatten(2).transpose([0, 2, 1])
        b, n, c = paddle.shape(tokens)[0], tokens.shape[1], tokens.shape[2]
        q, k, v = tokens.tile([1, 1, 6]).reshape([b, n, 3, 2, c]).transpose([2, 0, 3, 1, 4]).unbind(0)
        attention = paddle.nn.functional.softmax(paddle.matmul(q, k, transpose_y=True) * c**-0.5)
        return paddle.matmul(attention, v).transpose([0, 2, 1, 3]).reshape([b, n, 2 * c]).flatten(1)


class OpenHeads(paddle.nn.Layer):
    """The same with sizes that Paddle does not work out: the heads are flattened behind two unknown sizes."""

    def forward(self, x):
        tokens = x.flatten(2).transpose([0, 2, 1]).tile([1, 1, 6])
        y = tokens.reshape([0, -1, 3, 2, 3]).transpose([2, 0, 3, 1, 4])
        attention = paddle.nn.functional.softmax(paddle.matmul(y[0], y[1], transpose_y=True))
        return paddle.matmul(attention, y[2]).transpose([0, 2, 1, 3]).flatten(2).mean(1)


class FusedAttention(paddle.nn.Layer):
    def forward(self, x):
        return paddle.nn.functional.scaled_dot_product_attention(x, x, x).flatten(1)


@pytest.mark.parametrize("kind", [Windows, Heads, OpenHeads, FusedAttention])
def test_attention(kind, same_in_engines):
    same_in_engines(kind())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.tile([1, 2, 1, 3]),
        lambda x: paddle.flip(x, [2, 3]),
        lambda x: paddle.add_n(paddle.unbind(x, 1)),
        lambda x: x + paddle.meshgrid(paddle.arange(8.0), paddle.arange(8.0))[1],
        lambda x: x * paddle.linspace(0, 1, 8),
        lambda x: F.pixel_shuffle(x.tile([1, 4, 1, 1]), 2),
        lambda x: F.unfold(x, 3, strides=2, paddings=1),
        lambda x: F.unfold(x, [2, 3], dilations=2, paddings=[1, 0]),
        lambda x: F.fold(F.unfold(x, 3, strides=2, paddings=1), 8, 3, strides=2, paddings=1),
        lambda x: paddle.prod(x, 1),
        lambda x: paddle.amax(x, [1, 2]),
        lambda x: paddle.std(x, 1),
    ],
)
def test_repeating_turning_and_unfolding(function, same_in_engines):
    same_in_engines(Net(function))


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


class Assigned(paddle.nn.Layer):
    """Twice x, with `value`, or what it computes from x, at an index."""

    def __init__(self, index, value) -> None:
        super().__init__()
        self.index, self.value = index, value

    def forward(self, x):
        y = x * 2
        y[self.index] = self.value(x) if callable(self.value) else self.value
        return y.flatten(1)


@pytest.mark.parametrize(
    ("index", "value"),
    [
        ((slice(None), slice(0, 2)), 0.5),
        ((slice(None), 1), 0.5),
        ((slice(None), slice(0, 2)), lambda x: x[:, 1:] - 1),
        ((slice(None), slice(None), slice(2, -2), slice(-3, None)), lambda x: x[:, :, :4, :3]),
        ((slice(None), slice(None), slice(1, None, 3), slice(None, None, -1)), lambda x: x[:, :, :3]),
        ((slice(None), 1, slice(None, None, 2)), lambda x: x[:, 0, ::2]),
        ((slice(None), 1, slice(None, None, 2)), lambda x: paddle.arange(8.0)),
        ((slice(None), slice(None), slice(1, 3)), lambda x: x[:, :1, :1]),
        ((Ellipsis, 2), lambda x: x[..., 0]),
        ((slice(None), slice(2, 2)), 7.0),
        (slice(None), lambda x: x[:, :1]),
    ],
)
def test_assigning_to_a_part(index, value, same_in_engines):
    same_in_engines(Assigned(index, value))


class MaskOfRegions(paddle.nn.Layer):
    """A mask that is filled in region by region, as Swin's is: it is computed when the model is exported."""

    def forward(self, x):
        mask = paddle.zeros([1, 1, 8, 8])
        for count, (rows, columns) in enumerate(
            [(slice(0, 4), slice(4, 8)), (slice(-3, -1), slice(None)), (slice(-1, None), slice(0, 8, 2))]
        ):
            mask[:, :, rows, columns] = count + 1
        return (x + mask).flatten(1)


class AddedChannels(paddle.nn.Layer):
    """The first channels of a sum, as ReXNet adds them."""

    def forward(self, x):
        y = paddle.concat([x, -x], 1)
        y[:, 0:3] += x
        return y.flatten(1)


def test_a_mask_that_is_filled_in_is_a_constant(same_in_engines):
    made = same_in_engines(MaskOfRegions())
    assert [node.op_type for node in onnx.load(made.path).graph.node] == ["Add", "Reshape"]


def test_adding_to_a_part(same_in_engines):
    same_in_engines(AddedChannels())


@pytest.mark.parametrize("index", [0, slice(0, 1)])
def test_assigning_to_some_images_is_refused(index, write):
    with pytest.raises(LowbitError, match="assigns to positions that depend on the batch's size"):
        write(Assigned(index, 0.5), (3, 8, 8), quantized=False)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding_of_images(mode, same_in_engines):
    same_in_engines(Net(lambda x: F.pad(x, [1, 2, 3, 0], mode=mode)))


def test_padding_of_channels_with_a_value(same_in_engines):
    same_in_engines(Net(lambda x: F.pad(x, [0, 0, 1, 2, 0, 0, 0, 0], value=0.5)))


def test_constants_like_a_tensor(same_in_engines):
    same_in_engines(Net(lambda x: x * paddle.full_like(x, 0.5) + paddle.ones([8])))


def test_casts(same_in_engines):
    same_in_engines(Net(lambda x: (x * 3.0).cast("int32").cast("float32") + x))


@pytest.mark.parametrize("reduce", [paddle.mean, paddle.sum, paddle.max, paddle.min])
@pytest.mark.parametrize(("axes", "keep"), [([2, 3], False), ([1], True), (-1, False)])
def test_over_axes(reduce, axes, keep, same_in_engines):
    same_in_engines(Net(lambda x: reduce(x, axes, keepdim=keep)))
