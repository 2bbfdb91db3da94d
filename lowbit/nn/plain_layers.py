"""Which layers a fused step may compute instead of calling them: those that run only their own code."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import paddle.nn.functional as F
from paddle import Tensor, nn

from lowbit.kernels.norm import Activation
from lowbit.nn.quant_layers import QuantizedConv2D

ACTIVATIONS = {
    nn.ReLU: Activation.RELU,
    nn.ReLU6: Activation.RELU6,
    nn.Hardswish: Activation.HARDSWISH,
}
_FUNCTIONS = {F.relu: Activation.RELU, F.relu6: Activation.RELU6, F.hardswish: Activation.HARDSWISH}


def activation_kind(
    activation: nn.Layer | Callable[[Tensor], Tensor] | None, *, may_have_edge: bool = False
) -> Activation | None:
    """What the kernels call it; None for one that they do not have, or with hooks other than an edge's."""
    if activation is None:
        return Activation.NONE
    if not isinstance(activation, nn.Layer):
        return _FUNCTIONS.get(activation)
    if (has_hooks(activation) and not may_have_edge) or "forward" in vars(activation):
        return None
    return ACTIVATIONS.get(type(activation))


def is_activation(layer: nn.Layer | Callable[[Tensor], Tensor]) -> bool:
    """Whether it is an activation that the kernels have; with hooks, too."""
    return type(layer) in ACTIVATIONS if isinstance(layer, nn.Layer) else layer in _FUNCTIONS


def is_norm(layer: nn.Layer | None) -> bool:
    """Whether the layer is a batch norm that the kernels compute; subclasses are not.

    Of the old `nn.BatchNorm`, one without an activation within: PaddleClas's ConvBNLayers have it.
    """
    if type(layer) is nn.BatchNorm:
        return layer._act is None and _OLD_NORM_IS_KNOWN
    return type(layer) is nn.BatchNorm2D


def is_plain_norm(layer: nn.Layer) -> bool:
    """Whether it is such a batch norm, and nothing but its own code runs when it is called."""
    return is_norm(layer) and not has_hooks(layer) and "forward" not in vars(layer)


def function_digest(function: Callable[..., Any]) -> str:
    """A short digest of the source of a function; white space does not count."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # no source: not the code that we know
        return ""
    return hashlib.sha256(" ".join(source.split()).encode()).hexdigest()[:12]


OLD_NORM = "f77644306d71"  # digest of the forward of nn.BatchNorm that was read
_OLD_NORM_IS_KNOWN = function_digest(nn.BatchNorm.forward) == OLD_NORM


def has_hooks(layer: nn.Layer) -> bool:
    """Whether a call of the layer also calls hooks."""
    return bool(layer._forward_pre_hooks or layer._forward_post_hooks)


def is_plain_conv(conv: nn.Layer) -> bool:
    """Whether it is a convolution of training, as lowbit or Paddle wrote it, of which nothing is added."""
    if type(conv) not in (QuantizedConv2D, nn.Conv2D) or has_hooks(conv):
        return False
    if "forward" in vars(conv) or "effective_weight_and_bias" in vars(conv):
        return False
    layout = (conv._padding_mode, conv._data_format)
    return conv.bias is None and conv.training and layout == ("zeros", "NCHW")
