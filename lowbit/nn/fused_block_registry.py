"""The registry of fused blocks: block classes that lowbit knows, each with its forward in fused steps.

An entry holds for a class whose forward has the source that the entry was written for; a class with another
source, and its subclasses, run as they are. To add a class, write its forward with the functions of
`fused_steps` and register it with the digest that `source_digest` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.vision.models import mobilenetv2, mobilenetv3, resnet

from lowbit.accel.norm_ops import channel_product, fused_batch_norm, padded_shortcut
from lowbit.kernels.norm import Activation
from lowbit.models import resnet_cifar
from lowbit.nn.excitation import quantized_excitation
from lowbit.nn.fused_steps import (
    conv_norm_act,
    conv_norm_act_ranges,
    is_norm,
    norm_act,
    run_modules,
    with_residual,
)
from lowbit.nn.plain_layers import OLD_NORM, function_digest

FusedForward = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class KnownBlock:
    """A class in the registry: its fused forward, and which layers of the class may have it."""

    forward: FusedForward
    what: str  # is fused, for the report
    digest: str  # of the source of the class's own forward, for which `forward` was written
    applies: Callable[[Any], bool] = lambda layer: True
    branch: str | None = None  # the nn.Sequential whose last batch norm a residual sum, if any, follows

    def is_unchanged(self, kind: type[nn.Layer]) -> bool:
        """Whether the class's own forward still is the code that `forward` was written for."""
        return source_digest(kind) == self.digest

    def describe(self, layer: nn.Layer) -> str:
        """What is fused in this layer of the class."""
        if self.branch is not None and not layer.use_res_connect:
            return "convolution + batch norm, in low precision"
        return self.what

    def norms(self, layer: nn.Layer) -> list[nn.Layer]:
        """The batch norms that are fused, apart from those of sublayers that are fused themselves."""
        if self.branch is None:
            return [one for one in layer.children() if is_norm(one)]
        return list(getattr(layer, self.branch))[-1:] if layer.use_res_connect else []


REGISTRY: dict[type[nn.Layer], KnownBlock] = {}


def source_digest(kind: type[nn.Layer]) -> str:
    """A short digest of the source of a class's forward; white space does not count."""
    return function_digest(kind.forward)


def _known(
    kind: type[nn.Layer],
    what: str,
    digest: str,
    applies: Callable[[Any], bool] = lambda layer: True,
    branch: str | None = None,
) -> Callable[[FusedForward], FusedForward]:
    def register(forward: FusedForward) -> FusedForward:
        REGISTRY[kind] = KnownBlock(forward, what, digest, applies, branch)
        return forward

    return register


# The old batch norm has its activation within: DenseNet, and PaddleClas's ConvBNLayer.
_INNER = {"relu": Activation.RELU, "relu6": Activation.RELU6, "hard_swish": Activation.HARDSWISH}


@_known(nn.BatchNorm, "batch norm with its activation", OLD_NORM, lambda norm: norm._act in _INNER)
def _norm_with_inner_activation(self: Any, x: Tensor) -> Tensor:
    y = fused_batch_norm(self, x, activation=_INNER[self._act]) if self._act in _INNER else None
    return self._plain.forward(self, x) if y is None else y


@_known(resnet.BasicBlock, "2 batch norms + ReLU, with the residual sum", "a1ef458c00df")
def _basic_block(self: Any, x: Tensor) -> Tensor:
    out, ranges = conv_norm_act_ranges(self.conv1, self.bn1, x, self.relu)
    identity = x if self.downsample is None else run_modules([self.downsample], x)
    return conv_norm_act(self.conv2, self.bn2, out, self.relu, identity, ranges=ranges)


@_known(resnet.BottleneckBlock, "3 batch norms + ReLU, with the residual sum", "e7386993a49b")
def _bottleneck(self: Any, x: Tensor) -> Tensor:
    out, ranges = conv_norm_act_ranges(self.conv1, self.bn1, x, self.relu)
    out, ranges = conv_norm_act_ranges(self.conv2, self.bn2, out, self.relu, ranges=ranges)
    identity = x if self.downsample is None else run_modules([self.downsample], x)
    return conv_norm_act(self.conv3, self.bn3, out, self.relu, identity, ranges=ranges)


@_known(resnet.ResNet, "batch norm + ReLU + max-pool of the stem", "1c55d6e7237b")
def _resnet(self: Any, x: Tensor) -> Tensor:
    x = conv_norm_act(self.conv1, self.bn1, x, self.relu, pool=self.maxpool)
    x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
    x = self.avgpool(x) if self.with_pool else x
    return self.fc(paddle.flatten(x, 1)) if self.num_classes > 0 else x


@_known(resnet_cifar.BasicBlock, "2 batch norms + ReLU, with the residual sum", "20fe122ef58c")
def _cifar_block(self: Any, x: Tensor) -> Tensor:
    y, ranges = conv_norm_act_ranges(self.conv1, self.bn1, x, F.relu)
    return conv_norm_act(self.conv2, self.bn2, y, F.relu, _cifar_shortcut(self, x), ranges=ranges)


def _cifar_shortcut(self: Any, x: Tensor) -> Tensor:
    is_padded = self.stride > 1 and self.zero_channels and x.ndim == 4
    shortcut = padded_shortcut(x, self.stride, self.zero_channels) if is_padded else None
    return self._shortcut(x) if shortcut is None else shortcut


@_known(resnet_cifar.CifarResNet, "batch norm + ReLU of the stem", "8c6c20786157")
def _cifar_resnet(self: Any, x: Tensor) -> Tensor:
    x = norm_act(self.bn1, self.conv1(x), F.relu)
    x = self.layer3(self.layer2(self.layer1(x)))
    return self.linear(self.avgpool(x).flatten(1))


@_known(mobilenetv2.InvertedResidual, "batch norm + residual sum", "11ddfcc68000", branch="conv")
def _inverted_residual_v2(self: Any, x: Tensor) -> Tensor:
    return with_residual([self.conv], x, x) if self.use_res_connect else run_modules([self.conv], x)


@_known(mobilenetv3.InvertedResidual, "batch norm + residual sum", "352ecac7bdf4", branch="linear_conv")
def _inverted_residual_v3(self: Any, x: Tensor) -> Tensor:
    y, modules = x, [self.expand_conv, self.bottleneck_conv] if self.expand else [self.bottleneck_conv]
    if self.use_se:
        y, modules = self.mid_se(run_modules(modules, y)), []
    modules.append(self.linear_conv)
    return with_residual(modules, y, x) if self.use_res_connect else run_modules(modules, y)


@_known(mobilenetv3.SqueezeExcitation, "product with the scales of channels", "5cd2c84a0908")
def _squeeze_excitation(self: Any, x: Tensor) -> Tensor:
    y = quantized_excitation(self, x)
    if y is not None:
        return y
    scale = self._scale(x)
    y = channel_product(scale, x)
    return scale * x if y is None else y
