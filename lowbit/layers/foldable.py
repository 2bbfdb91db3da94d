"""Which batch norms can be folded: they take what one layer gives, and nobody else does. Found and proved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.paddle_errors import cause
from lowbit.layers.quantized import is_quantized

BATCH_NORM = nn.layer.norm._BatchNormBase  # of BatchNorm1D, 2D, 3D and SyncBatchNorm
_LAYERS = nn.Conv2D | nn.Conv2DTranspose | nn.Linear
# Of the largest answer: two runs of the same model on a GPU may differ in last bits.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Folded:
    """The pairs (layer, batch norm), by name, and the batch norms that have none, with the reason."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Call:
    """One call of a layer during the trace; the tensors are held so that their ids stay their own."""

    layer: nn.Layer
    input: Any
    output: Any


def find_foldable(model: nn.Layer, *inputs: Tensor) -> Folded:
    """The batch norms that can be folded into the layer before them, and the others with the reason.

    The model, which stays as it is, is run on `inputs`. The proof does not depend on the values in it: what
    a layer gives is hidden from everyone but its batch norm, and the answers must stay the same.

    >>> net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1D(2), nn.ReLU(), nn.BatchNorm1D(2))
    >>> find_foldable(net, paddle.ones([3, 4])).pairs
    [('0', '1')]
    """
    names = {id(layer): name for name, layer in model.named_sublayers()}
    found = Folded()
    candidates = []
    with eval_mode(model):
        calls, answers = _trace(model, inputs)
        for name, layer in model.named_sublayers():
            if isinstance(layer, nn.BatchNorm):
                found.left_alone[name] = "it is the old paddle.nn.BatchNorm: use BatchNorm2D in the model"
            if isinstance(layer, BATCH_NORM):
                source, why = _source(layer, calls, model)
                if source is None:
                    found.left_alone[name] = why
                else:
                    candidates.append((source, layer))
        proved = candidates
        if not _nobody_else_reads(candidates, model, inputs, answers):
            proved = [pair for pair in candidates if _nobody_else_reads([pair], model, inputs, answers)]
    for source, norm in candidates:
        if (source, norm) in proved:
            found.pairs.append((names[id(source)], names[id(norm)]))
        else:
            found.left_alone[names[id(norm)]] = f"the output of {names[id(source)]} is used elsewhere, too"
    return found


def _trace(model: nn.Layer, inputs: tuple[Tensor, ...]) -> tuple[list[_Call], list[np.ndarray]]:
    calls: list[_Call] = []
    hooks = [
        layer.register_forward_post_hook(lambda layer, given, out: calls.append(_Call(layer, given[0], out)))
        for layer in model.sublayers()
        if isinstance(layer, BATCH_NORM | _LAYERS)
    ]
    try:
        answers = _answers(model, inputs)
    except Exception as error:  # the user's own forward may raise anything
        shapes = ", ".join(str(list(given.shape)) for given in inputs)
        raise LowbitError(
            f"{type(model).__name__} does not run on the example inputs {shapes}, from which its batch norms "
            f"are to be found: {cause(error)}. Give inputs that it takes (in a config: Global.image_shape)"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not answers or not all(np.isfinite(answer).all() for answer in answers):
        raise LowbitError(
            f"the answers of {type(model).__name__} to the example inputs are "
            f"{'NaN or Inf' if answers else 'no tensors'}: what its batch norms follow cannot be proved"
        )
    return calls, answers


def _answers(model: nn.Layer, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
    random_state = paddle.get_rng_state()
    flat = paddle.utils.flatten(model(*inputs))
    paddle.set_rng_state(random_state)  # a model that draws numbers draws the same in every run
    return [out.astype("float32").numpy() for out in flat if isinstance(out, Tensor)]


def _source(norm: nn.Layer, calls: list[_Call], model: nn.Layer) -> tuple[nn.Layer | None, str]:
    """The layer whose output the batch norm takes, or why it cannot be folded into one."""
    own = [call for call in calls if call.layer is norm]
    if len(own) != 1:
        return None, f"it is called {len(own)} times in a forward pass"
    if norm._use_global_stats is False:
        return None, "it uses the statistics of the batch in evaluation, too (use_global_stats=False)"
    sources = [call for call in calls if call.output is own[0].input]
    if not sources:
        return None, "its input is not the output of a Conv2D, Conv2DTranspose or Linear layer"
    source = sources[-1].layer
    if is_quantized(source):
        return None, "the layer before it is quantized already: fold before prepare"
    if isinstance(source, BATCH_NORM):
        return None, "its input is the output of another batch norm"
    if not (has_paddles_forward(source) and has_paddles_forward(norm)):
        return None, "it, or the layer before it, has a forward of its own"
    if source._forward_pre_hooks or source._forward_post_hooks or norm._forward_pre_hooks:
        return None, "hooks stand between it and the layer before it, or change that layer"
    if sum(call.layer is source for call in calls) != 1:
        return None, "the layer before it is called several times in a forward pass"
    parameters = [parameter for layer in model.sublayers() for parameter in _own(layer)]
    if sum(parameter is source.weight for parameter in parameters) != 1:
        return None, "the layer before it shares its weight"
    features_last = isinstance(source, nn.Linear) or source._data_format.endswith("C")
    if own[0].input.ndim > 2 and features_last != norm._data_format.endswith("C"):
        return None, "it normalizes another axis than the layer's outputs"
    return source, ""


def has_paddles_forward(layer: nn.Layer) -> bool:
    """Whether it computes what its base class in Paddle does (or lowbit's own do), and no more."""
    return type(layer).forward.__module__.startswith(("paddle.", "lowbit."))


def _own(layer: nn.Layer) -> list[Tensor]:
    return list(layer.parameters(include_sublayers=False))


def _nobody_else_reads(
    pairs: list[tuple], model: nn.Layer, inputs: tuple[Tensor, ...], expected: list[np.ndarray]
) -> bool:
    """Whether the answers stay when everyone but the batch norms gets NaN for what the layers give."""
    hooks = []
    for source, norm in pairs:
        hidden: list[Tensor] = []

        def hide(layer: nn.Layer, given: Any, out: Tensor, hidden: list[Tensor] = hidden) -> Tensor:
            hidden.append(out)
            return paddle.full_like(out, float("nan"))

        def show(norm: nn.Layer, given: Any, hidden: list[Tensor] = hidden) -> Tensor:
            return hidden[0]

        hooks += [source.register_forward_post_hook(hide), norm.register_forward_pre_hook(show)]
    try:
        answers = _answers(model, inputs)
    except Exception:  # a forward that computes an index from NaN, say: somebody else reads it
        return False
    finally:
        for hook in hooks:
            hook.remove()
    return all(
        np.allclose(found, answer, rtol=0, atol=_TOLERANCE * max(float(np.abs(answer).max(initial=0)), 1e-30))
        for found, answer in zip(answers, expected, strict=True)
    )
