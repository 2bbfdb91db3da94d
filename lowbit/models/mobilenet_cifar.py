"""MobileNetV2 for 32×32 images: paddle.vision's inverted residuals, of which fewer halve the size."""

from __future__ import annotations

import paddle
from paddle import nn
from paddle.vision.models._utils import _make_divisible
from paddle.vision.models.mobilenetv2 import InvertedResidual
from paddle.vision.ops import ConvNormActivation

from lowbit.models.registry import register_model

# Expansion, channels, blocks and first stride of each stage. For ImageNet the stem and the second stage have
# stride 2, too; 32×32 images would be a single pixel in the end.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class CifarMobileNetV2(nn.Layer):
    """MobileNetV2 whose features are 8 times smaller than the image; `scale` multiplies the channels.

    >>> CifarMobileNetV2(num_classes=10, scale=0.5)(paddle.rand([2, 3, 32, 32])).shape
    paddle.Size([2, 10])
    """

    def __init__(self, num_classes: int, scale: float = 1.0) -> None:
        super().__init__()
        channels = _make_divisible(32 * scale)
        last = _make_divisible(1280 * max(1.0, scale))
        blocks: list[nn.Layer] = [ConvNormActivation(3, channels, activation_layer=nn.ReLU6)]
        for expansion, width, count, stride in _STAGES:
            for number in range(count):
                made = _make_divisible(width * scale)
                blocks.append(InvertedResidual(channels, made, stride if number == 0 else 1, expansion))
                channels = made
        blocks.append(ConvNormActivation(channels, last, kernel_size=1, activation_layer=nn.ReLU6))
        self.features = nn.Sequential(*blocks)
        self.pool2d_avg = nn.AdaptiveAvgPool2D(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, num_classes))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.classifier(self.pool2d_avg(self.features(x)).flatten(1))


@register_model("mobilenet_v2_cifar")
def mobilenet_v2_cifar(num_classes: int, *, scale: float = 1.0) -> CifarMobileNetV2:
    """MobileNetV2 for images of 32x32 pixels, as in CIFAR-10."""
    return CifarMobileNetV2(num_classes, scale)
