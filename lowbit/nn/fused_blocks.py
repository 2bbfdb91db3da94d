"""Fused blocks: batch norm, residual sum and activation in one pass and one autograd node, by conversion.

A block is converted only where its code is known: classes of a registry, whose forward must be the one this
file was written for, layers next to each other in `nn.Sequential`, or layers that the user names. Parameters
and sublayers stay where they are, so `state_dict` keeps its names. Each fused step checks its layers when it
runs and calls them one by one where it cannot run as one: hooks on an inner layer, another batch norm, an
activation other than ReLU, ReLU6 and hard swish, evaluation, mixed precision, GPUs, export.

Example::

    report = fuse(net)
    print(report)               # which blocks were fused, which were not, and why
    with lowbit.accelerate():   # fused steps run inside
        loss = criterion(net(images), labels)
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.vision.models import mobilenetv2, mobilenetv3, resnet

from lowbit.accel.norm_ops import channel_product, fast_norm_ops, fused_batch_norm, padded_shortcut
from lowbit.accel.op_overrides import change_class
from lowbit.errors import LowbitError, did_you_mean
from lowbit.kernels.norm import Activation
from lowbit.models import resnet_cifar

_FusedForward = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Fusion:
    """The result of `fuse`: layers that were fused, and batch norms that were not, with the reason."""

    fused: dict[str, str] = field(default_factory=dict)  # layer name: what is fused
    unfused: dict[str, str] = field(default_factory=dict)  # batch norm's name: why not

    def to_dict(self) -> dict[str, dict[str, str]]:
        """The same as plain values."""
        return {"fused": dict(self.fused), "unfused": dict(self.unfused)}

    def __str__(self) -> str:
        lines = [f"{len(self.fused)} fused block" + "s" * (len(self.fused) != 1)]
        lines += [f"  {name or 'the network itself'}: {what}" for name, what in self.fused.items()]
        if self.unfused:
            lines.append(f"{len(self.unfused)} batch norms stay as they are")
            lines += [f"  {name}: {why}" for name, why in self.unfused.items()]
        return "\n".join(lines)


def fuse(
    net: nn.Layer, groups: Sequence[Sequence[str]] | None = None, example: Tensor | None = None
) -> Fusion:
    """Fuse, in place, the blocks of `net` whose code is known; with `groups`, also layers that you name.

    A group is a list of layers that `forward` calls directly one after the other: a batch norm and a ReLU,
    with or without the convolution before them. lowbit runs `example` through the network before and after,
    in training mode, and raises an error if an output or a gradient differs. This covers only the code that
    this run executes: do not name a batch norm whose output another branch of `forward` reads conditionally.

    >>> net = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.ReLU())
    >>> print(fuse(net))
    1 fused block
      the network itself: batch norm + ReLU: 1
    """
    fused: dict[str, str] = {}
    if groups:
        fused |= _fuse_named(net, groups, example)
    for name, layer in net.named_sublayers(include_self=True):
        if (what := _convert(layer)) is not None:
            fused[name] = what
    return Fusion(fused, _unfused(net, fused))


def unfuse(net: nn.Layer) -> None:
    """Undo `fuse`: every layer has its own class again."""
    for layer in net.sublayers(include_self=True):
        if isinstance(layer, _Fused):
            change_class(layer, layer._plain)


def norm_act(
    norm: nn.Layer,
    x: Tensor,
    activation: nn.Layer | Callable[[Tensor], Tensor] | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`activation(norm(x) + residual)`, in one pass where that is possible, else layer by layer.

    >>> norm_act(nn.BatchNorm2D(2), paddle.ones([1, 2, 3, 3]), F.relu).shape
    [1, 2, 3, 3]
    """
    kind = _activation_kind(activation)
    if kind is not None and _is_plain_norm(norm):
        y = fused_batch_norm(norm, x, residual, activation=kind)
        if y is not None:
            return y
    y = norm(x)
    y = y if residual is None else y + residual
    return y if activation is None else activation(y)


class _Fused:
    """Mixed into a block's class; `_plain` is the class it had."""

    _plain: type[nn.Layer]
    _fused_forward: _FusedForward
    training: bool

    def _run(self, x: Tensor) -> Tensor:
        if self.training and paddle.in_dynamic_mode():
            return type(self)._fused_forward(self, x)
        return self._plain.forward(self, x)


# As the plain class names its argument: callers, and to_static, may pass it by name.
@paddle.jit.not_to_static
def _forward_of_x(self: _Fused, x: Tensor) -> Tensor:
    return self._run(x)


@paddle.jit.not_to_static
def _forward_of_input(self: _Fused, input: Tensor) -> Tensor:
    return self._run(input)


_FORWARDS: dict[tuple[str, ...], Callable[[_Fused, Tensor], Tensor]] = {
    ("self", "x"): _forward_of_x,
    ("self", "input"): _forward_of_input,
}


@cache
def _fused_class(kind: type[nn.Layer], forward: _FusedForward) -> type[nn.Layer]:
    arguments = tuple(inspect.signature(kind.forward).parameters)
    members = {"_plain": kind, "_fused_forward": forward, "__module__": kind.__module__}
    members["forward"] = _FORWARDS[arguments]
    return type(f"Fused{kind.__name__}", (_Fused, kind), members)


def _convert(layer: nn.Layer) -> str | None:
    """Give the layer a fused forward if its class is known; what is fused, or None."""
    if "forward" in vars(layer):  # replaced on the instance, by to_static or by the user
        return None
    kind = type(layer)
    known = _REGISTRY.get(kind)
    if known is not None and known.is_unchanged(kind) and known.applies(layer):
        change_class(layer, _fused_class(kind, known.forward))
        return known.what
    if kind.forward is not nn.Sequential.forward:
        return None
    members = list(layer._sub_layers.values())
    if pairs := _pairs(members):
        kinds = ", ".join(dict.fromkeys(type(members[at + 1]).__name__ for at in sorted(pairs)))
        change_class(layer, _fused_class(kind, _sequential))
        return f"batch norm + {kinds}: {len(pairs)}"
    return None


# The forwards of known blocks, with what can be fused in one step. --------------------------------------


@dataclass(frozen=True)
class _Known:
    forward: _FusedForward
    what: str
    digest: str  # of the source of the class's own forward, for which `forward` was written
    applies: Callable[[Any], bool] = lambda layer: True

    def is_unchanged(self, kind: type[nn.Layer]) -> bool:
        return source_digest(kind) == self.digest


_REGISTRY: dict[type[nn.Layer], _Known] = {}


def source_digest(kind: type[nn.Layer]) -> str:
    """A short digest of the source of a class's forward; white space does not count."""
    try:
        source = inspect.getsource(kind.forward)
    except (OSError, TypeError):  # no source: not the code that we know
        return ""
    return hashlib.sha256(" ".join(source.split()).encode()).hexdigest()[:12]


def _known(
    kind: type[nn.Layer], what: str, digest: str, applies: Callable[[Any], bool] = lambda layer: True
) -> Callable[[_FusedForward], _FusedForward]:
    def register(forward: _FusedForward) -> _FusedForward:
        _REGISTRY[kind] = _Known(forward, what, digest, applies)
        return forward

    return register


# The old batch norm has its activation within: DenseNet, and PaddleClas's ConvBNLayer.
_INNER = {"relu": Activation.RELU, "relu6": Activation.RELU6, "hard_swish": Activation.HARDSWISH}


@_known(nn.BatchNorm, "batch norm with its activation", "f77644306d71", lambda norm: norm._act in _INNER)
def _norm_with_inner_activation(self: Any, x: Tensor) -> Tensor:
    y = fused_batch_norm(self, x, activation=_INNER[self._act]) if self._act in _INNER else None
    return self._plain.forward(self, x) if y is None else y


@_known(resnet.BasicBlock, "2 batch norms + ReLU, with the residual sum", "a1ef458c00df")
def _basic_block(self: Any, x: Tensor) -> Tensor:
    out = norm_act(self.bn1, self.conv1(x), self.relu)
    out = self.conv2(out)
    identity = x if self.downsample is None else self.downsample(x)
    return norm_act(self.bn2, out, self.relu, identity)


@_known(resnet.BottleneckBlock, "3 batch norms + ReLU, with the residual sum", "e7386993a49b")
def _bottleneck(self: Any, x: Tensor) -> Tensor:
    out = norm_act(self.bn1, self.conv1(x), self.relu)
    out = norm_act(self.bn2, self.conv2(out), self.relu)
    out = self.conv3(out)
    identity = x if self.downsample is None else self.downsample(x)
    return norm_act(self.bn3, out, self.relu, identity)


@_known(resnet.ResNet, "batch norm + ReLU of the stem", "1c55d6e7237b")
def _resnet(self: Any, x: Tensor) -> Tensor:
    x = norm_act(self.bn1, self.conv1(x), self.relu)
    x = self.layer4(self.layer3(self.layer2(self.layer1(self.maxpool(x)))))
    x = self.avgpool(x) if self.with_pool else x
    return self.fc(paddle.flatten(x, 1)) if self.num_classes > 0 else x


@_known(resnet_cifar.BasicBlock, "2 batch norms + ReLU, with the residual sum", "20fe122ef58c")
def _cifar_block(self: Any, x: Tensor) -> Tensor:
    y = norm_act(self.bn1, self.conv1(x), F.relu)
    y = self.conv2(y)
    return norm_act(self.bn2, y, F.relu, _cifar_shortcut(self, x))


def _cifar_shortcut(self: Any, x: Tensor) -> Tensor:
    is_padded = self.stride > 1 and self.zero_channels and x.ndim == 4
    shortcut = padded_shortcut(x, self.stride, self.zero_channels) if is_padded else None
    return self._shortcut(x) if shortcut is None else shortcut


@_known(resnet_cifar.CifarResNet, "batch norm + ReLU of the stem", "8c6c20786157")
def _cifar_resnet(self: Any, x: Tensor) -> Tensor:
    x = norm_act(self.bn1, self.conv1(x), F.relu)
    x = self.layer3(self.layer2(self.layer1(x)))
    return self.linear(self.avgpool(x).flatten(1))


@_known(mobilenetv2.InvertedResidual, "batch norm + residual sum", "11ddfcc68000")
def _inverted_residual_v2(self: Any, x: Tensor) -> Tensor:
    if not self.use_res_connect:
        return self.conv(x)
    return _with_residual(self.conv, x, x)


@_known(mobilenetv3.InvertedResidual, "batch norm + residual sum", "352ecac7bdf4")
def _inverted_residual_v3(self: Any, x: Tensor) -> Tensor:
    y = self.expand_conv(x) if self.expand else x
    y = self.bottleneck_conv(y)
    y = self.mid_se(y) if self.use_se else y
    return _with_residual(self.linear_conv, y, x) if self.use_res_connect else self.linear_conv(y)


@_known(mobilenetv3.SqueezeExcitation, "product with the scales of channels", "5cd2c84a0908")
def _squeeze_excitation(self: Any, x: Tensor) -> Tensor:
    scale = self._scale(x)
    y = channel_product(scale, x)
    return scale * x if y is None else y


def _with_residual(layers: nn.Layer, x: Tensor, residual: Tensor) -> Tensor:
    """`layers(x) + residual`; the sum is fused with a batch norm at the end of a Sequential."""
    own = getattr(type(layers), "_plain", type(layers)).forward is nn.Sequential.forward
    *first, norm = list(layers._sub_layers.values()) if own else [layers]
    if not own or _has_hooks(layers) or "forward" in vars(layers) or not _is_plain_norm(norm):
        return layers(x) + residual
    return norm_act(norm, _run_layers(first, x), None, residual)


def _sequential(self: Any, x: Tensor) -> Tensor:
    return _run_layers(list(self), x)


def _run_layers(layers: list[nn.Layer], x: Tensor) -> Tensor:
    fused = _pairs(layers)
    for place, layer in enumerate(layers):
        if place in fused:
            x = norm_act(layer, x, layers[place + 1])
        elif place - 1 not in fused:
            x = layer(x)
    return x


def _pairs(layers: list[nn.Layer]) -> set[int]:
    """The places of batch norms that an activation follows."""
    pairs = enumerate(pairwise(layers))
    return {at for at, (norm, act) in pairs if _is_norm(norm) and type(act) in _ACTIVATIONS}


# Layers that the user names. ----------------------------------------------------------------------------

_RECTIFIED = "_lowbit_rectified"  # on a tensor: its version when it left a fused batch norm, after the ReLU


def _fuse_named(net: nn.Layer, groups: Sequence[Sequence[str]], example: Tensor | None) -> dict[str, str]:
    if example is None:
        raise LowbitError("fuse by name checks its result: give an input, fuse(net, groups, example=x)")
    layers = dict(net.named_sublayers())
    pairs = [_pair_of(group, layers) for group in groups]
    with fast_norm_ops():
        before = _trial(net, example)
        for norm, relu in pairs:
            change_class(norm, _fused_class(type(norm), _norm_with_relu))
            change_class(relu, _fused_class(type(relu), _relu_after_norm))
        after = _trial(net, example)
    if not all(paddle.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(before, after, strict=True)):
        unfuse(net)
        raise LowbitError(
            f"fuse would change the network's results: in one of the groups {[list(g) for g in groups]} "
            "another operator reads the batch norm's output; leave that group out"
        )
    return {group[-2]: f"batch norm + ReLU, with {group[-1]}" for group in groups}


def _pair_of(group: Sequence[str], layers: dict[str, nn.Layer]) -> tuple[nn.Layer, nn.Layer]:
    """The batch norm and the ReLU of a group."""
    for name in group:
        if name not in layers:
            raise LowbitError(f'fuse: the network has no layer "{name}": {did_you_mean(name, layers)}')
    named = [layers[name] for name in group]
    if len(named) not in (2, 3) or not _is_norm(named[-2]) or type(named[-1]) is not nn.ReLU:
        raise LowbitError(
            f"fuse: the layers {list(group)} are not a convolution (optional), an nn.BatchNorm2D and an "
            "nn.ReLU: name them in this order"
        )
    return named[-2], named[-1]


def _norm_with_relu(self: Any, x: Tensor) -> Tensor:
    y = None if _has_hooks(self) else fused_batch_norm(self, x, None, activation=Activation.RELU)
    if y is None:
        return self._plain.forward(self, x)
    setattr(y, _RECTIFIED, y.inplace_version)
    return y


def _relu_after_norm(self: Any, x: Tensor) -> Tensor:
    if getattr(x, _RECTIFIED, None) == x.inplace_version:
        return x
    return self._plain.forward(self, x)


def _trial(net: nn.Layer, example: Tensor) -> list[Tensor]:
    """Outputs and gradients of one training pass, which leaves no trace in the network."""
    state = {name: value.clone() for name, value in net.state_dict().items()}
    training = [(layer, layer.training) for layer in net.sublayers(include_self=True)]
    random_state = paddle.get_rng_state()
    parameters = [p for p in net.parameters() if not p.stop_gradient]
    try:
        net.train()
        with paddle.enable_grad():
            outputs = [out for out in paddle.utils.flatten(net(example)) if isinstance(out, Tensor)]
            total = paddle.add_n([(out * out).mean() for out in outputs])
            gradients = paddle.grad(total, parameters, allow_unused=True)
    finally:
        net.set_state_dict(state)
        paddle.set_rng_state(random_state)
        for layer, was in training:
            layer.training = was
    return [out.detach() for out in outputs] + [g for g in gradients if g is not None]


# What may be fused. -------------------------------------------------------------------------------------


_ACTIVATIONS = {
    nn.ReLU: Activation.RELU,
    nn.ReLU6: Activation.RELU6,
    nn.Hardswish: Activation.HARDSWISH,
}
_FUNCTIONS = {F.relu: Activation.RELU, F.relu6: Activation.RELU6, F.hardswish: Activation.HARDSWISH}


def _activation_kind(activation: nn.Layer | Callable[[Tensor], Tensor] | None) -> Activation | None:
    """What the kernels call it; None for one that they do not have, or with hooks."""
    if activation is None:
        return Activation.NONE
    if not isinstance(activation, nn.Layer):
        return _FUNCTIONS.get(activation)
    if _has_hooks(activation) or "forward" in vars(activation):
        return None
    return _ACTIVATIONS.get(type(activation))


def _is_norm(layer: nn.Layer | None) -> bool:
    return type(layer) is nn.BatchNorm2D


def _is_plain_norm(layer: nn.Layer) -> bool:
    return _is_norm(layer) and not _has_hooks(layer) and "forward" not in vars(layer)


def _has_hooks(layer: nn.Layer) -> bool:
    return bool(layer._forward_pre_hooks or layer._forward_post_hooks)


def _unfused(net: nn.Layer, fused: dict[str, str]) -> dict[str, str]:
    """Batch norms outside of fused blocks, each with the reason."""
    found = {}
    for name, layer in net.named_sublayers():
        if not isinstance(layer, nn.BatchNorm2D | nn.BatchNorm) or isinstance(layer, _Fused):
            continue
        parent = name.rpartition(".")[0]
        if parent in fused:
            continue
        kind = type(net if not parent else dict(net.named_sublayers())[parent]).__name__
        if not _is_norm(layer):
            found[name] = f"{type(layer).__name__} is not nn.BatchNorm2D"
        elif _has_hooks(layer):
            found[name] = "it has hooks"
        else:
            found[name] = f"lowbit does not know the forward of {kind}, or no ReLU or hard swish follows"
    return found
