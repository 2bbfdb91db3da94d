"""Fused blocks: batch norm, residual sum and activation in one pass and one autograd node, by conversion.

A convolution in low precision before the batch norm is in the same node; in QAT, where a quantizer follows,
with that, and so are the next convolutions up to a tensor that others read. So is the first convolution of a
network in fp32 that a max-pool follows: its output, the largest tensor of all, is computed again in the
backward pass.

A block is converted only where its code is known: classes of `fused_block_registry`, layers next to each
other in `nn.Sequential` or in a forward that is a chain (`chain_forward`), or layers that the user names.
Parameters and sublayers stay where they are, so `state_dict` keeps its names. A converted block runs the
steps of `fused_steps`, in training; each step calls its layers one by one where it cannot run as one.

Example::

    report = fuse(net)
    print(report)               # which blocks were fused, which were not, and why
    with lowbit.accelerate():   # fused steps run inside
        loss = criterion(net(images), labels)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import paddle
from paddle import Tensor, nn

from lowbit.accel.norm_ops import fast_norm_ops, fused_batch_norm
from lowbit.accel.op_overrides import change_class
from lowbit.errors import LowbitError, did_you_mean
from lowbit.kernels.norm import Activation
from lowbit.nn.chain_forward import chain_modules
from lowbit.nn.fused_block_registry import REGISTRY, FusedForward
from lowbit.nn.fused_steps import norms_before_activations, run_layers
from lowbit.nn.plain_layers import has_hooks, is_norm


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
    return Fusion(fused, _unfused(net))


def unfuse(net: nn.Layer) -> None:
    """Undo `fuse`: every layer has its own class again."""
    for layer in net.sublayers(include_self=True):
        if isinstance(layer, _Fused):
            change_class(layer, layer._plain)


class _Fused:
    """Mixed into a block's class; `_plain` is the class it had."""

    _plain: type[nn.Layer]
    _fused_forward: FusedForward
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


@paddle.jit.not_to_static
def _forward_of_inputs(self: _Fused, inputs: Tensor) -> Tensor:
    return self._run(inputs)


_FORWARDS: dict[tuple[str, ...], Callable[[_Fused, Tensor], Tensor]] = {
    ("self", "x"): _forward_of_x,
    ("self", "input"): _forward_of_input,
    ("self", "inputs"): _forward_of_inputs,
}


@cache
def _fused_class(kind: type[nn.Layer], forward: FusedForward) -> type[nn.Layer]:
    arguments = tuple(inspect.signature(kind.forward).parameters)
    members = {"_plain": kind, "_fused_forward": forward, "__module__": kind.__module__}
    members["forward"] = _FORWARDS[arguments]
    return type(f"Fused{kind.__name__}", (_Fused, kind), members)


def _convert(layer: nn.Layer) -> str | None:
    """Give the layer a fused forward if its class is known; what is fused, or None."""
    if "forward" in vars(layer):  # replaced on the instance, by to_static or by the user
        return None
    kind = type(layer)
    known = REGISTRY.get(kind)
    if known is not None and known.is_unchanged(kind) and known.applies(layer):
        change_class(layer, _fused_class(kind, known.forward))
        return known.describe(layer)
    members = _members(layer)
    if members is None or tuple(inspect.signature(kind.forward).parameters) not in _FORWARDS:
        return None
    if norms := norms_before_activations(members):
        kinds = ", ".join(dict.fromkeys(type(members[at + 1]).__name__ for at in sorted(norms)))
        change_class(layer, _fused_class(kind, _one_by_one))
        return f"batch norm + {kinds}: {len(norms)}"
    return None


def _members(layer: nn.Layer) -> list[nn.Layer] | None:
    """The layers that the layer's forward calls one after the other, and does nothing else."""
    forward = getattr(type(layer), "_plain", type(layer)).forward
    if forward is nn.Sequential.forward:
        return list(layer._sub_layers.values())
    return chain_modules(layer, forward)


def _one_by_one(self: Any, x: Tensor) -> Tensor:
    members = _members(self)  # anew: what a forward calls may depend on attributes
    return self._plain.forward(self, x) if members is None else run_layers(members, x)


# Layers that the user names. ----------------------------------------------------------------------------

_RECTIFIED = "_lowbit_rectified"  # on a tensor: its version when it left a fused batch norm, after the ReLU


def _fuse_named(net: nn.Layer, groups: Sequence[Sequence[str]], example: Tensor | None) -> dict[str, str]:
    if example is None:
        raise LowbitError("fuse by name checks its result: give an input, fuse(net, groups, example=x)")
    if not isinstance(example, Tensor):
        raise LowbitError(f"fuse: the example is a paddle.Tensor, got {type(example).__name__}")
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
    if len(named) not in (2, 3) or not is_norm(named[-2]) or type(named[-1]) is not nn.ReLU:
        raise LowbitError(
            f"fuse: the layers {list(group)} are not a convolution (optional), an nn.BatchNorm2D and an "
            "nn.ReLU: name them in this order"
        )
    return named[-2], named[-1]


def _norm_with_relu(self: Any, x: Tensor) -> Tensor:
    y = None if has_hooks(self) else fused_batch_norm(self, x, None, activation=Activation.RELU)
    if y is None:
        return self._plain.forward(self, x)
    setattr(y, _RECTIFIED, y.inplace_version)
    return y


def _relu_after_norm(self: Any, x: Tensor) -> Tensor:
    # `set_value` and views by DLPack change values without raising the version.
    if getattr(x, _RECTIFIED, None) == x.inplace_version and float(x.detach().min()) >= 0:
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


def _unfused(net: nn.Layer) -> dict[str, str]:
    """Batch norms outside of fused blocks, each with the reason."""
    converted = [norm for layer in net.sublayers(include_self=True) for norm in _fused_norms(layer)]
    done = {id(norm) for norm in converted if not has_hooks(norm)}
    layers = dict(net.named_sublayers(include_self=True))
    found = {}
    for name, layer in layers.items():
        if not isinstance(layer, nn.BatchNorm2D | nn.BatchNorm) or id(layer) in done:
            continue
        parent = layers.get(name.rpartition(".")[0], net)
        plain = getattr(parent, "_plain", type(parent))
        if type(layer) is nn.BatchNorm and layer._act is not None:
            found[name] = f'there is no kernel for its activation "{layer._act}"'
        elif not is_norm(layer):
            found[name] = f"{type(layer).__name__} is not nn.BatchNorm2D"
        elif has_hooks(layer):
            found[name] = "it has hooks"
        elif plain not in REGISTRY and "forward" not in vars(parent) and _members(parent) is not None:
            found[name] = "no ReLU, ReLU6 or hard swish follows it"
        else:
            found[name] = f"the forward of {plain.__name__} is neither known nor a chain of layers"
    return found


def _fused_norms(layer: nn.Layer) -> list[nn.Layer]:
    """The batch norms that are fused by this layer's own conversion."""
    if not isinstance(layer, _Fused):
        return []
    known = REGISTRY.get(layer._plain)
    if isinstance(layer, nn.BatchNorm2D | nn.BatchNorm):
        return [layer]
    if known is not None:
        return known.norms(layer)
    members = _members(layer) or []
    return [members[at] for at in norms_before_activations(members)]
