"""Fold batch norm into the convolution or Linear layer before it, where that provably changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.quantized import is_quantized

_BATCH_NORM = nn.layer.norm._BatchNormBase
# Of the largest output. Folding moves last bits only; a wrong fold moves far more.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Folded:
    """The pairs (layer, batch norm) that were folded, and the batch norms that were not, with the reason."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Call:
    """One call of a layer during the trace; the tensors are held so that their ids stay their own."""

    layer: nn.Layer
    input: Any
    output: Any


def fold_batch_norm(model: nn.Layer, *inputs: Tensor) -> Folded:
    """Fold, in place, every batch norm that takes what a Conv2D or Linear gives and nothing else changes.

    The pairs are found by running the model once on `inputs`. Whether a fold is right is proved by the
    outputs, which must stay the same (in evaluation, to 1e-4 of the largest); one that is not is undone.
    The batch norm's place is taken by an nn.Identity, the layer gets a bias. Make the optimizer after.

    fold_batch_norm(model, paddle.randn([2, 3, 224, 224])).left_alone
    """
    names = {id(layer): name for name, layer in model.named_sublayers()}
    with eval_mode(model):
        calls, before = _trace(model, inputs)
        folded = Folded()
        candidates = []
        for name, layer in model.named_sublayers():
            if isinstance(layer, _BATCH_NORM):
                source, why = _source(layer, calls, model)
                if source is None:
                    folded.left_alone[name] = why
                else:
                    candidates.append((source, layer))
        done = _fold_proved(model, inputs, before, candidates)
    for source, norm in candidates:
        if (source, norm) in done:
            folded.pairs.append((names[id(source)], names[id(norm)]))
        else:
            folded.left_alone[names[id(norm)]] = (
                f"folding it into {names[id(source)]}, whose output is used elsewhere too, changes answers"
            )
    return folded


def _trace(model: nn.Layer, inputs: tuple[Tensor, ...]) -> tuple[list[_Call], list[np.ndarray]]:
    calls: list[_Call] = []
    watched = [layer for layer in model.sublayers() if isinstance(layer, _BATCH_NORM | nn.Conv2D | nn.Linear)]
    hooks = [
        layer.register_forward_post_hook(lambda layer, given, out: calls.append(_Call(layer, given[0], out)))
        for layer in watched
    ]
    try:
        return calls, _outputs(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()


def _outputs(model: nn.Layer, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
    flat = paddle.utils.flatten(model(*inputs))
    return [out.numpy() for out in flat if isinstance(out, Tensor)]


def _source(norm: nn.Layer, calls: list[_Call], model: nn.Layer) -> tuple[nn.Layer | None, str]:
    """The layer whose output the batch norm takes, or why it cannot be folded into one."""
    own = [call for call in calls if call.layer is norm]
    if len(own) != 1:
        return None, f"it is called {len(own)} times in a forward pass"
    sources = [call for call in calls if call.output is own[0].input]
    if not sources:
        return None, "its input is not the output of a Conv2D or Linear layer"
    source = sources[-1].layer
    if is_quantized(source):
        return None, "the layer before it is quantized already: fold before prepare"
    if isinstance(source, _BATCH_NORM):
        return None, "its input is the output of another batch norm"
    if sum(call.layer is source for call in calls) != 1:
        return None, "the layer before it is called several times in a forward pass"
    if sum(parameter is source.weight for layer in model.sublayers() for parameter in _own(layer)) != 1:
        return None, "the layer before it shares its weight"
    features_last = isinstance(source, nn.Linear) or source._data_format.endswith("C")
    if own[0].input.ndim > 2 and features_last != norm._data_format.endswith("C"):
        return None, "it normalizes another axis than the layer's outputs"
    return source, ""


def _own(layer: nn.Layer) -> list[Tensor]:
    return list(layer.parameters(include_sublayers=False))


def _fold_proved(
    model: nn.Layer, inputs: tuple[Tensor, ...], before: list[np.ndarray], candidates: list[tuple]
) -> list[tuple]:
    """The candidates that are folded in the end: all at once, or else those that pass one by one."""
    undo = [_fold(model, source, norm) for source, norm in candidates]
    if _same(before, _outputs(model, inputs)):
        return candidates
    for action in reversed(undo):
        action()
    done = []
    for source, norm in candidates:
        revert = _fold(model, source, norm)
        if _same(before, _outputs(model, inputs)):
            done.append((source, norm))
        else:
            revert()
    return done


def _same(before: list[np.ndarray], after: list[np.ndarray]) -> bool:
    return bool(before) and all(
        np.allclose(a, b, rtol=0, atol=_TOLERANCE * max(float(np.abs(b).max(initial=0)), 1e-30))
        for a, b in zip(after, before, strict=True)
    )


def _fold(model: nn.Layer, source: nn.Layer, norm: nn.Layer) -> Callable[[], None]:
    """Fold one pair, and return the function that undoes it."""
    weight, bias = source.weight.numpy(), source.bias
    old_bias = None if bias is None else bias.numpy()
    mean, variance = (t.numpy().astype(np.float64) for t in (norm._mean, norm._variance))
    gain = 1 / np.sqrt(variance + norm._epsilon)
    if norm.weight is not None:
        gain = gain * norm.weight.numpy()
    shift = -mean * gain if old_bias is None else (old_bias - mean) * gain
    if norm.bias is not None:
        shift = shift + norm.bias.numpy()
    along = gain if isinstance(source, nn.Linear) else gain[:, None, None, None]
    source.weight.set_value((weight * along).astype(weight.dtype))
    if bias is None:
        source.bias = source.create_parameter([len(shift)], dtype=source.weight.dtype, is_bias=True)
    source.bias.set_value(shift.astype(weight.dtype))
    _replace(model, norm, identity := nn.Identity())

    def undo() -> None:
        source.weight.set_value(weight)
        if bias is None:
            source.bias = None
        else:
            source.bias.set_value(old_bias)
        _replace(model, identity, norm)

    return undo


def _replace(model: nn.Layer, old: nn.Layer, new: nn.Layer) -> None:
    """Put `new` wherever the model holds `old`."""
    for parent in model.sublayers(include_self=True):
        for key, child in parent.named_children():
            if child is old:
                setattr(parent, key, new)
