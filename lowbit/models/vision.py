"""The ImageNet models of paddle.vision, under their own names and PaddleClas's."""

from __future__ import annotations

import paddle.vision.models as vision
from paddle.nn import Layer

from lowbit.models.registry import register_model


@register_model("mobilenet_v3_small", "MobileNetV3_small_x1_0")
def mobilenet_v3_small(num_classes: int, *, scale: float = 1.0) -> Layer:
    """MobileNetV3 small: squeeze-and-excite and hard swish, for phones; 224x224 images."""
    return vision.mobilenet_v3_small(num_classes=num_classes, scale=scale)


@register_model("mobilenet_v3_large", "MobileNetV3_large_x1_0")
def mobilenet_v3_large(num_classes: int, *, scale: float = 1.0) -> Layer:
    """MobileNetV3 large: squeeze-and-excite and hard swish; 224x224 images."""
    return vision.mobilenet_v3_large(num_classes=num_classes, scale=scale)


@register_model("mobilenet_v2", "MobileNetV2")
def mobilenet_v2(num_classes: int, *, scale: float = 1.0) -> Layer:
    """MobileNetV2: inverted residuals with depthwise convolutions; 224x224 images."""
    return vision.mobilenet_v2(num_classes=num_classes, scale=scale)


@register_model("resnet18", "ResNet18")
def resnet18(num_classes: int) -> Layer:
    """ResNet with 18 layers of basic blocks; 224x224 images."""
    return vision.resnet18(num_classes=num_classes)


@register_model("resnet34", "ResNet34")
def resnet34(num_classes: int) -> Layer:
    """ResNet with 34 layers of basic blocks; 224x224 images."""
    return vision.resnet34(num_classes=num_classes)


@register_model("resnet50", "ResNet50")
def resnet50(num_classes: int) -> Layer:
    """ResNet with 50 layers of bottleneck blocks; 224x224 images."""
    return vision.resnet50(num_classes=num_classes)
