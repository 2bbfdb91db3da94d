"""The ImageNet models of paddle.vision, under their own names and PaddleClas's."""

from __future__ import annotations

import inspect
from typing import Any

import paddle.vision.models as vision
from paddle.nn import Layer

from lowbit.models.registry import register_model


def logits_in_evaluation(model: Layer) -> Layer:
    """The model itself, whose forward returns the first of its tensors in evaluation and all in training.

    For models like GoogLeNet, which return a list `[logits, auxiliary, auxiliary]` in both. Parameters keep
    their names.

    >>> net = logits_in_evaluation(paddle.vision.models.googlenet(num_classes=10))
    >>> net.eval()
    >>> list(net(paddle.rand([2, 3, 224, 224])).shape)
    [2, 10]
    """
    kind = type(model)

    def forward(self: Layer, x: Any) -> Any:
        outputs = kind.forward(self, x)
        if self.training:
            return outputs
        return outputs[0]

    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return model


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


def _register(name: str, description: str, **options: Any) -> None:
    """Register paddle.vision's function of that name; `options` are the keywords that it takes."""

    def build(num_classes: int, **given: Any) -> Layer:
        return getattr(vision, name)(num_classes=num_classes, **given)

    build.__doc__ = f"{description}; 224x224 images."
    # build_model compares options with the signature.
    keywords = [
        inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, default=value)
        for word, value in options.items()
    ]
    first = inspect.Parameter("num_classes", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    build.__signature__ = inspect.Signature([first, *keywords])  # type: ignore[attr-defined]
    register_model(name)(build)


_register("alexnet", "AlexNet: five convolutions and three large Linear layers")


@register_model("googlenet")
def googlenet(num_classes: int) -> Layer:
    """GoogLeNet: Inception blocks, with two more classifiers for training; 224x224 images."""
    return logits_in_evaluation(vision.googlenet(num_classes=num_classes))


_register("inception_v3", "Inception V3: factorized convolutions; made for 299x299")
_register("mobilenet_v1", "MobileNetV1: depthwise and 1x1 convolutions", scale=1.0)
for _depth in (101, 152):
    _register(f"resnet{_depth}", f"ResNet with {_depth} layers of bottleneck blocks")
for _depth, _groups in ((50, 32), (50, 64), (101, 32), (101, 64), (152, 32), (152, 64)):
    _register(
        f"resnext{_depth}_{_groups}x4d", f"ResNeXt with {_depth} layers, convolutions in {_groups} groups"
    )
for _depth in (50, 101):
    _register(f"wide_resnet{_depth}_2", f"ResNet with {_depth} layers, twice as wide inside of its blocks")
for _depth in (11, 13, 16, 19):
    _register(f"vgg{_depth}", f"VGG with {_depth} layers: plain 3x3 convolutions", batch_norm=False)
for _depth in (121, 161, 169, 201, 264):
    _register(f"densenet{_depth}", f"DenseNet with {_depth} layers: each reads all before it")
for _version in ("1_0", "1_1"):
    _register(f"squeezenet{_version}", "SqueezeNet: 1x1 convolutions squeeze the channels")
for _width in ("x0_25", "x0_33", "x0_5", "x1_0", "x1_5", "x2_0", "swish"):
    _register(f"shufflenet_v2_{_width}", "ShuffleNetV2: channels are split and shuffled, for phones")
