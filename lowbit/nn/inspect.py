"""Quantization modes of a model, and statistics of its operands and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Literal, TypeVar, get_args

import numpy as np
from paddle import Tensor, nn

from lowbit.errors import LowbitError, did_you_mean
from lowbit.nn.activation_matmul import SIDES, QuantizedMatmul
from lowbit.nn.edge_quantizers import without_edges
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.qt_autograd import BackwardQuantizers
from lowbit.nn.qtensor import QTensor
from lowbit.nn.quant_layers import is_quantized
from lowbit.numerics.exact import as_float32
from lowbit.numerics.stats import LevelHistogram, QuantStats, level_histogram, measure_stats, value_histogram
from lowbit.recipe.model_layers import find_layers

Way = Literal["quantized", "weights", "full"]

_LEFT_OUT: dict[str, tuple[str, ...]] = {
    "quantized": (),
    "weights": ("input_quantizer",),
    "full": ("input_quantizer", "weight_quantizer"),
}


@contextmanager
def quantization_mode(model: nn.Layer, how: Way) -> Iterator[None]:
    """Within it, in evaluation mode, the model computes as `how` says; afterwards as before.

    "quantized" is as it was trained, "weights" leaves activations as they are, "full" leaves weights, too.
    Nothing of the model's state is touched: parameters, ranges, steps and signs are what they were.

    with quantization_mode(model, "weights"):
        logits = model(images)
    """
    if how not in _LEFT_OUT:
        raise LowbitError(f'a model is not tested as "{how}"; {did_you_mean(how, get_args(Way))}')
    with eval_mode(model), ExitStack() as undo:
        if how != "quantized":
            undo.enter_context(without_edges(model))
        for layer in filter(is_quantized, model.sublayers(include_self=True)):
            for name in _LEFT_OUT[how]:
                # An attribute of the object hides the sublayer of that name, which stays where it is.
                undo.callback(_put_back, layer, name, layer.__dict__.get(name))
                object.__setattr__(layer, name, _unchanged)
        for layer in model.sublayers(include_self=True) if _LEFT_OUT[how] else ():
            if isinstance(layer, QuantizedMatmul):  # both operands are activations
                for name in (f"{side}_quantizer" for side in SIDES):
                    undo.callback(_put_back, layer, name, layer.__dict__.get(name))
                    object.__setattr__(layer, name, _unchanged)
        yield


def _put_back(layer: nn.Layer, name: str, before: object | None) -> None:
    """What the attribute was before: another mode's, or none, which shows the sublayer again."""
    if before is None:
        object.__delattr__(layer, name)
    else:
        object.__setattr__(layer, name, before)


def _unchanged(x: Tensor) -> Tensor:
    return x


# Statistics of operands during low-precision training.


_ENOUGH_VALUES = 1 << 16  # values to measure the health of an operand by

Seen = TypeVar("Seen")
# layer -> operand, such as `grad_input.grad_output` -> what was seen of it
Sight = dict[str, dict[str, QuantStats]]


def operand_health(x: Tensor, made: QTensor) -> QuantStats:
    """The health of an operand that was made of `x`."""
    return measure_stats(
        x, made.data, made.scale, lowest=made.lowest, highest=made.highest, most=_ENOUGH_VALUES
    )


@contextmanager
def watching(
    model: nn.Layer,
    look: Callable[[Tensor, QTensor], Seen] = operand_health,  # type: ignore[assignment]
    *,
    wanted: bool = True,
) -> Iterator[dict[str, dict[str, Seen]]]:
    """Within it, statistics of every low-precision layer's operands are recorded; the last call counts.

    with watching(model) as seen:
        loss_of(model, batch).backward()
    print(seen["layer1.0.conv1"]["grad_input.grad_output"].sqnr)
    """
    seen: dict[str, dict[str, Seen]] = {}
    parts = [
        (name, layer.backward_quantizers)
        for name, layer in model.named_sublayers(include_self=True)
        if wanted and isinstance(getattr(layer, "backward_quantizers", None), BackwardQuantizers)
    ]
    for name, part in parts:
        part.look = _into(seen.setdefault(name, {}), look)
    try:
        yield seen
    finally:
        for _, part in parts:
            part.look = None


def _into(
    found: dict[str, Seen], look: Callable[[Tensor, QTensor], Seen]
) -> Callable[[str, Tensor, QTensor], None]:
    def keep(operand: str, x: Tensor, made: QTensor) -> None:
        found[operand] = look(x, made)

    return keep


# Statistics of weights between steps: health, scale, histogram.


_ENOUGH = 1 << 20  # values that stand for a weight in its health


def weight_health(layer: nn.Layer) -> QuantStats | None:
    """Statistics of quantizing a layer's weight, as in evaluation; None if it is not quantized.

    weight_health(model.conv1).sqnr
    """
    if not _is_on_grid(layer):
        return None
    weight, integers, scale = _on_grid(layer)
    grid = layer.weight_quantizer.grid()
    bounds = {"lowest": grid.lowest, "highest": grid.highest, "spacing": grid.spacing}
    return measure_stats(weight, integers, scale, **bounds, most=_ENOUGH)


def kept_scales(layer: nn.Layer) -> dict[str, float]:
    """The scales of a layer's operands of forward, each the mean over its groups, as far as they have any.

    >>> kept_scales(nn.Linear(2, 2))
    {}
    """
    found: dict[str, float] = {}
    if not is_quantized(layer):
        return found
    quantizer = layer.input_quantizer
    if quantizer.gives_integers and quantizer.spec.keeps_scales:
        with suppress(LowbitError):  # no finite batch yet: there is no scale
            found["forward.input"] = float(quantizer.scale().mean())
    if _is_on_grid(layer):
        found["forward.weight"] = float(_on_grid(layer)[2].mean())
    return found


def weight_histogram(layer: nn.Layer) -> LevelHistogram:
    """A layer's weight in steps of its grid, each channel by its own scale; or plainly, without a grid."""
    if not _is_on_grid(layer):
        return value_histogram(layer.weight.numpy())
    weight, _, scale = _on_grid(layer)
    grid = layer.weight_quantizer.grid()
    steps = weight.numpy().astype(np.float64) / scale.numpy()  # in fp32 a tiny learned scale would overflow
    return level_histogram(steps, grid.lowest, grid.highest, grid.spacing)


def layers_by_name(model: nn.Layer) -> dict[str, nn.Layer]:
    """The layers that can be quantized, by the names that plans give them, in the model's order.

    >>> list(layers_by_name(nn.Sequential(nn.Linear(2, 2), nn.ReLU())))
    ['0']
    """
    by_name = dict(model.named_sublayers(remove_duplicate=False))
    return {layer.name: by_name[layer.name] for layer in find_layers(model)}


def _is_on_grid(layer: nn.Layer) -> bool:
    return is_quantized(layer) and layer.weight_quantizer.gives_integers


def _on_grid(layer: nn.Layer) -> tuple[Tensor, Tensor, Tensor]:
    """The weight that is quantized (with a folded batch norm, not the parameter), its integers and scale."""
    weight = as_float32(layer.effective_weight_and_bias()[0].detach())
    return weight, *layer.weight_quantizer.integers(weight)
