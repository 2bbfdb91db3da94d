"""The narrow residual networks for 32×32 images: 6n+2 layers, shortcuts without parameters."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F
from paddle import nn

from lowbit.models.registry import register_model


def _conv3x3(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2D:
    return nn.Conv2D(
        channels_in,
        channels_out,
        3,
        stride=stride,
        padding=1,
        bias_attr=False,
        weight_attr=nn.initializer.KaimingNormal(),
    )


class BasicBlock(nn.Layer):
    """Two 3×3 convolutions with a shortcut.

    Where the shapes differ, the shortcut takes every second pixel and puts zero channels on both sides.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels_in, channels_out, stride)
        self.bn1 = nn.BatchNorm2D(channels_out)
        self.conv2 = _conv3x3(channels_out, channels_out)
        self.bn2 = nn.BatchNorm2D(channels_out)
        self.stride = stride
        self.zero_channels = (channels_out - channels_in) // 2

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self._shortcut(x))

    def _shortcut(self, x: paddle.Tensor) -> paddle.Tensor:
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.zero_channels:
            # Not F.pad: an exported `pad` of the channels crashes in Paddle Inference's oneDNN.
            zeros = paddle.zeros_like(x[:, : self.zero_channels])
            x = paddle.concat([zeros, x, zeros], axis=1)
        return x


class CifarResNet(nn.Layer):
    """A ResNet of three stages with 16, 32 and 64 channels.

    >>> CifarResNet(blocks_per_stage=3, num_classes=10)(paddle.rand([2, 3, 32, 32])).shape
    paddle.Size([2, 10])
    """

    def __init__(self, blocks_per_stage: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(3, 16)
        self.bn1 = nn.BatchNorm2D(16)
        self.layer1 = _stage(16, 16, 1, blocks_per_stage)
        self.layer2 = _stage(16, 32, 2, blocks_per_stage)
        self.layer3 = _stage(32, 64, 2, blocks_per_stage)
        self.avgpool = nn.AdaptiveAvgPool2D(1)
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(self.avgpool(x).flatten(1))


def _stage(channels_in: int, channels_out: int, stride: int, blocks: int) -> nn.Sequential:
    first = BasicBlock(channels_in, channels_out, stride)
    return nn.Sequential(first, *(BasicBlock(channels_out, channels_out, 1) for _ in range(blocks - 1)))


@register_model("resnet20")
def resnet20(num_classes: int) -> CifarResNet:
    """ResNet with 20 layers for images of 32x32 pixels, as in CIFAR-10."""
    return CifarResNet(3, num_classes)


@register_model("resnet32")
def resnet32(num_classes: int) -> CifarResNet:
    """ResNet with 32 layers for images of 32x32 pixels, as in CIFAR-10."""
    return CifarResNet(5, num_classes)


@register_model("resnet56")
def resnet56(num_classes: int) -> CifarResNet:
    """ResNet with 56 layers for images of 32x32 pixels, as in CIFAR-10."""
    return CifarResNet(9, num_classes)
