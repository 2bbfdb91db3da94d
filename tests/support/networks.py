"""Small networks, each built to break a fast path that believes something about who reads a tensor, or when.

Every one takes images of 3×16×16 and gives logits, or several; a training step is `loss(images, labels)`
followed by whatever `backward` does. What differs in training from evaluation is on purpose.
"""

from __future__ import annotations

import copy
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F

CLASSES = 5
WIDTH = 8


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2D:
    padding = kernel // 2
    return nn.Conv2D(inputs, outputs, kernel, stride, padding, groups=groups, bias_attr=False)


class Network(nn.Layer):
    """A stem, `middle`, which the subclasses have, and a head; a step with one loss."""

    modes: tuple[str, ...] | None = None  # None: all

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, WIDTH), nn.BatchNorm2D(WIDTH), nn.ReLU())
        self.conv = conv(WIDTH, WIDTH)
        self.bn = nn.BatchNorm2D(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.build()

    def build(self) -> None:
        """Further layers."""

    def middle(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))

    def forward(self, x: Tensor) -> Any:
        return self.logits(self.middle(self.stem(x)))

    def logits(self, x: Tensor) -> Tensor:
        return self.head(x.mean([2, 3]))

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        found = self(images)
        outputs = found if isinstance(found, tuple) else (found,)
        return sum(F.cross_entropy(output, labels) for output in outputs)

    def backward_pass(self, images: Tensor, labels: Tensor) -> float:
        """The loss, with the gradients of all parameters added to what they have."""
        loss = self.loss(images, labels)
        loss.backward()
        return float(loss)


class Plain(Network):
    """Nothing special: what the fast paths are made for."""


class TwoReaders(Network):
    """A convolution's output is read by a batch norm and by another convolution: its gradient is a sum."""

    def build(self) -> None:
        self.other = conv(WIDTH, WIDTH)

    def middle(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return F.relu(self.bn(y)) + 10 * self.other(y)


class Crop(Network):
    """A second head reads the middle of a convolution's output: most of its gradient stays as it was."""

    def build(self) -> None:
        self.other, self.other_head = conv(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(self.stem(x))
        inner = self.other(y[:, :, 4:12, 4:12])
        return self.logits(F.relu(self.bn(y))), 10 * self.other_head(inner.mean([2, 3]))


class StridedShortcut(Network):
    """A shortcut of every second pixel with zero channels, as in ResNet20, around a strided block."""

    def build(self) -> None:
        self.down, self.down_bn = conv(WIDTH, 2 * WIDTH, stride=2), nn.BatchNorm2D(2 * WIDTH)
        self.head = nn.Linear(2 * WIDTH, CLASSES)

    def middle(self, x: Tensor) -> Tensor:
        x = super().middle(x)
        zeros = paddle.zeros([x.shape[0], WIDTH // 2, 8, 8])
        shortcut = paddle.concat([zeros, x[:, :, ::2, ::2], zeros], axis=1)
        return F.relu(self.down_bn(self.down(x)) + shortcut)


class DenseConcat(Network):
    """DenseNet: every layer reads the results of all before it, through a batch norm of its own."""

    def build(self) -> None:
        widths = [WIDTH * (1 + i) for i in range(3)]
        self.norms = nn.LayerList([nn.BatchNorm2D(width) for width in widths])
        self.convs = nn.LayerList([conv(width, WIDTH) for width in widths])
        self.head = nn.Linear(4 * WIDTH, CLASSES)

    def middle(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.convs, strict=True):
            x = paddle.concat([x, layer(F.relu(norm(x)))], axis=1)
        return x


class SharedLayers(Network):
    """The same convolution and batch norm twice, read by a ReLU the first and by a sum the second time."""

    def middle(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(F.relu(self.bn(self.conv(x))))) + x


class TiedWeights(Network):
    """Two layers with one weight."""

    def build(self) -> None:
        self.other = conv(WIDTH, WIDTH)
        self.other.weight = self.conv.weight

    def middle(self, x: Tensor) -> Tensor:
        return super().middle(x) + self.other(x)


class SqueezeExcite(Network):
    """A batch norm's result is averaged, goes through 1×1 maps and is multiplied by what comes of it."""

    def build(self) -> None:
        self.pool, self.down, self.up = (
            nn.AdaptiveAvgPool2D(1),
            nn.Conv2D(WIDTH, 4, 1),
            nn.Conv2D(4, WIDTH, 1),
        )

    def middle(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        return y * F.hardsigmoid(self.up(F.relu(self.down(self.pool(y)))))


class NormOfOnePixel(Network):
    """Batch norms over 1×1 maps, and over a single value per channel, which Paddle returns as it is."""

    def build(self) -> None:
        self.one = nn.BatchNorm2D(WIDTH)

    def middle(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        pooled = y.mean([2, 3], keepdim=True)
        return F.relu(self.bn(pooled) + self.one(pooled[:1])) + y


class EfficientNetDropPath(Network):
    """In training only, some images' results become 0 and the others are scaled."""

    def middle(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        if self.training:
            kept = paddle.floor(0.7 + paddle.rand([y.shape[0], 1, 1, 1], dtype=y.dtype))
            y = paddle.multiply(y / 0.7, kept)
        return y + x


class PaddleClasDropPath(Network):
    """The same with `paddle.shape` and methods of the tensor."""

    def middle(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        if not self.training:
            return y + x
        kept = paddle.to_tensor(0.7)
        shape = (paddle.shape(y)[0],) + (1,) * (y.ndim - 1)
        drawn = paddle.floor(kept + paddle.rand(shape, dtype=y.dtype))
        return x + y.divide(kept) * drawn


class StochasticDepth(Network):
    """In training a whole block is left out at random: its parameters get no gradient in that step."""

    def build(self) -> None:
        self.blocks = nn.LayerList(
            [nn.Sequential(conv(WIDTH, WIDTH), nn.BatchNorm2D(WIDTH)) for _ in range(4)]
        )

    def middle(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if not self.training or float(paddle.rand([1])) < 0.5:
                x = F.relu(block(x) + x)
        return x


class AuxiliaryHead(Network):
    """In training only, a second head reads the batch norm's result before the ReLU."""

    def build(self) -> None:
        self.other, self.other_head = conv(WIDTH, WIDTH, 1), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        y = self.bn(self.conv(self.stem(x)))
        logits = self.logits(F.relu(y))
        return (logits, self.other_head(self.other(y).mean([2, 3]))) if self.training else logits


class Recompute(Network):
    """In training the tail runs without gradients first, and again in the backward pass."""

    def build(self) -> None:
        self.tail = nn.Sequential(nn.ReLU(), conv(WIDTH, WIDTH), nn.BatchNorm2D(WIDTH), nn.MaxPool2D(2))

    def middle(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        return recompute(self.tail, y) if self.training else self.tail(y)


class _Doubled(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensor()
        return dy * y, dy * x


class UsersPyLayer(Network):
    """A PyLayer, which lets only tensors into the graph, reads a batch norm's result."""

    def middle(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        return F.relu(_Doubled.apply(y, F.sigmoid(y)))


class Hooks(Network):
    """Hooks that change inputs and results, on layers and on one that encloses them; and on tensors."""

    def build(self) -> None:
        self.block = nn.Sequential(conv(WIDTH, WIDTH), nn.BatchNorm2D(WIDTH))
        self.bn.register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 2,))
        self.bn.register_forward_post_hook(lambda layer, inputs, y: paddle.clip(y, -1.5, 1.5))
        self.conv.register_forward_post_hook(lambda layer, inputs, y: y + 0.1)
        self.block.register_forward_post_hook(lambda layer, inputs, y: y + inputs[0])

    def middle(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y.register_hook(lambda gradient: gradient * 2)
        z = self.bn(y)
        z.register_hook(lambda gradient: gradient.clip(-0.01, 0.01))
        return F.relu(self.block(F.relu(z)))


class InPlace(Network):
    """Operators in place on the results of convolutions and batch norms."""

    def build(self) -> None:
        self.other = nn.BatchNorm2D(WIDTH)

    def middle(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y *= 3
        y.add_(paddle.full([1], 0.25))
        y[:, :, :2] = 1.0
        z = self.bn(y)
        z += x
        z = self.other(F.relu_(z))
        z[:, 0] = 2.0
        return F.relu_(z.scale_(0.5))


class ReshapedInPlace(Network):
    """A convolution's result gets another shape before a batch norm of other channels reads it."""

    def build(self) -> None:
        self.wide = nn.BatchNorm2D(2 * WIDTH)

    def middle(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y.reshape_([y.shape[0], 2 * WIDTH, 8, 16])
        return self.wide(y).reshape([x.shape[0], WIDTH, 16, 16])


class Accumulated(Network):
    """Gradients of two halves of the batch are added up before the optimizer's step."""

    def backward_pass(self, images: Tensor, labels: Tensor) -> float:
        half = images.shape[0] // 2
        first = super().backward_pass(images[:half], labels[:half])
        return first + super().backward_pass(images[half:], labels[half:])


class TwoLosses(Network):
    """Two losses behind one trunk, in one call, and a third one of another forward pass.

    Not one after the other with `retain_graph`: Paddle 3.3 crashes in the second pass through any PyLayer.
    """

    def backward_pass(self, images: Tensor, labels: Tensor) -> float:
        features = self.middle(self.stem(images))
        first, second = F.cross_entropy(self.logits(features), labels), features.abs().mean()
        third = self.middle(self.stem(images * 2)).square().mean()
        paddle.autograd.backward([first, 3 * second])
        third.backward()
        return float(first) + float(second) + float(third)


class MeanTeacher(Network):
    """A deep copy of the network, made in the step, gives targets without gradients, in training mode."""

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        teacher = copy.deepcopy(self)
        with paddle.no_grad():
            target = teacher(images)
        return super().loss(images, labels) + F.mse_loss(self(images), target.detach() * 0.5)


class TrainedCopy(Network):
    """The step is one of a deep copy, whose gradients are those of the network's own parameters."""

    def backward_pass(self, images: Tensor, labels: Tensor) -> float:
        twin = copy.deepcopy(self)
        loss = twin.loss(images, labels)
        loss.backward()
        for own, other in zip(self.parameters(), twin.parameters(), strict=True):
            own.grad = other.grad
        return float(loss)


class StaticTail(Network):
    """A part without quantized layers, batch norm included, is a static program in training."""

    modes = ("fp32", "W4A4G4")  # making a program takes a second

    def build(self) -> None:
        self.tail = paddle.jit.to_static(nn.Sequential(nn.BatchNorm2D(WIDTH), nn.ReLU(), nn.MaxPool2D(2)))

    def middle(self, x: Tensor) -> Tensor:
        return self.tail(self.conv(x))


class Static(Network):
    """The whole network is a static program; quantizers refuse that in training."""

    modes = ("fp32",)

    def build(self) -> None:
        self.forward = paddle.jit.to_static(self.forward)


class StopGradient(Network):
    """A batch norm's result is cut from the graph: nothing before it may learn from what is behind."""

    def build(self) -> None:
        self.other = conv(WIDTH, WIDTH)

    def middle(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        y.stop_gradient = True
        return F.relu(y) + self.other(x)


class RegionsOfInterest(Network):
    """A second head reads overlapping boxes of a convolution's result, by slices and by roi_align."""

    def build(self) -> None:
        self.other_head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(self.stem(x))
        boxes = [y[:, :, top : top + 6, left : left + 6] for top, left in ((0, 0), (4, 3), (9, 9))]
        count = y.shape[0]
        corners = paddle.to_tensor([[2.0, 2.0, 9.0, 9.0]] * count)
        numbers = paddle.ones([count], "int32")
        aligned = paddle.vision.ops.roi_align(y, corners, numbers, 6)
        found = sum(boxes) + aligned
        return self.logits(F.relu(self.bn(y))), 10 * self.other_head(found.mean([2, 3]))


class PartOfChannels(Network):
    """A second head reads half of the channels."""

    def build(self) -> None:
        self.other, self.other_head = conv(WIDTH // 2, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(self.stem(x))
        other = self.other(y[:, : WIDTH // 2])
        return self.logits(F.relu(self.bn(y))), 10 * self.other_head(other.mean([2, 3]))


class SecondNorm(Network):
    """Two batch norms of one tensor, one with statistics far away; and a third one of their sum."""

    def build(self) -> None:
        self.second, self.third = nn.BatchNorm2D(WIDTH), nn.BatchNorm2D(WIDTH, use_global_stats=True)
        self.second._mean.set_value(paddle.full([WIDTH], 1000.0))
        self.second._variance.set_value(paddle.full([WIDTH], 1e-6))

    def middle(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return F.relu(self.third(self.bn(y) + self.second(y)))


class FunctionalOps(Network):
    """What Paddle's functions and operators do with a batch norm's result, which must be a tensor."""

    def middle(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        assert isinstance(y, Tensor) and type(y) is type(x)
        count = int(paddle.shape(y)[0])
        parts = [
            paddle.multiply(y, y),
            paddle.clip(y, -0.5, 0.5),
            F.gelu(y),
            F.leaky_relu(y),
            y @ y.transpose([0, 1, 3, 2]),
            paddle.einsum("nchw,nkhw->nckh", y, y),
            F.interpolate(y[:, :, ::2, ::2], scale_factor=2),
            paddle.concat([y, y])[:count],
            paddle.mean(y) + y,
            -y + 1 - 2 * y / 3,
        ]
        return sum(part.reshape([count, -1]).mean(1).reshape([count, 1, 1, 1]) for part in parts) + F.relu(y)


class OtherShapes(Network):
    """Depthwise, strided, transposed and pointwise convolutions; ReLU before the batch norm, two pools."""

    def build(self) -> None:
        self.depthwise = nn.Conv2D(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.up = nn.Conv2DTranspose(WIDTH, WIDTH, 2, 2)
        self.point = nn.Conv2D(WIDTH, WIDTH, 1)
        for layer in (self.depthwise, self.up, self.point):
            # Sums of integers can be 0, where a ReLU's gradient would be that of a float's last bits.
            layer.bias.set_value(paddle.full([WIDTH], 0.1))

    def middle(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(self.bn(F.relu(self.depthwise(x))), 3, 2, 1)
        y = F.max_pool2d(F.relu(self.up(y)), 2)
        return self.conv(F.relu(self.point(y)))


class ResidualBlock(nn.Layer):
    """Two layers around a sum, with activations as functions: only the block and its layers are modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bn = nn.Conv2D(4, 4, 1), nn.Conv2D(4, 4, 1), nn.BatchNorm2D(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.second(F.relu(self.first(x)))) + x)


NETWORKS = [
    Plain, TwoReaders, Crop, StridedShortcut, DenseConcat, SharedLayers, TiedWeights, SqueezeExcite,
    NormOfOnePixel, EfficientNetDropPath, PaddleClasDropPath, StochasticDepth, AuxiliaryHead, Recompute,
    UsersPyLayer, Hooks, InPlace, ReshapedInPlace, Accumulated, TwoLosses, MeanTeacher, TrainedCopy,
    StaticTail, Static, StopGradient, RegionsOfInterest, PartOfChannels, SecondNorm, FunctionalOps,
    OtherShapes,
]  # fmt: skip
