"""What quantizing does to each layer's operands on some images: weight, input and, in training, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from lowbit.analysis.sensitivity import logits_of
from lowbit.data import Batch
from lowbit.nn.convert import quantized_layers, quantizing_only
from lowbit.nn.inspect import watching, weight_health, weight_histogram
from lowbit.nn.qt_autograd import GRADIENTS
from lowbit.nn.qtensor import QTensor
from lowbit.numerics.stats import LevelHistogram, QuantStats, level_histogram, measure_stats

_ENOUGH = 1 << 18  # values that stand for an operand


@dataclass(frozen=True)
class OperandView:
    """QuantStats and histogram of one operand; None where it is on no grid."""

    health: QuantStats | None = None
    histogram: LevelHistogram | None = None

    def values(self) -> dict[str, Any]:
        """In plain values: what the table and the report show."""
        found: dict[str, Any] = {"sqnr": None, "clipped": None, "dead": None, "histogram": None}
        if self.health is not None:
            found["sqnr"] = self.health.sqnr if math.isfinite(self.health.sqnr) else None
            found["clipped"] = self.health.clipped
        if self.histogram is not None and self.histogram.levels is not None:
            found["dead"] = self.histogram.dead_levels
            found["histogram"] = self.histogram.values()
        return found


def view_weights(model: nn.Layer) -> dict[str, OperandView]:
    """By layer, each weight as evaluation quantizes it."""
    layers = quantized_layers(model)
    return {
        name: OperandView(weight_health(layer), weight_histogram(layer)) for name, layer in layers.items()
    }


def view_inputs(model: nn.Layer, batch: Batch) -> dict[str, OperandView]:
    """By layer, the input that the model in full precision gives it, as the layer would quantize it."""
    found: dict[str, OperandView] = {}

    def look(name: str) -> Callable[..., Any]:
        def hook(layer: nn.Layer, inputs: Sequence[Tensor]) -> None:
            # Its own attribute is hidden while the layer runs in full precision.
            quantizer = layer._sub_layers["input_quantizer"]
            if quantizer.gives_integers and name not in found:
                integers, scale = quantizer.integers(inputs[0])
                grid = quantizer.grid()
                made = QTensor(data=integers, scale=scale, lowest=grid.lowest, highest=grid.highest)
                found[name] = view_operand(inputs[0], made)

        return hook

    hooks = [layer.register_forward_pre_hook(look(name)) for name, layer in quantized_layers(model).items()]
    try:
        with quantizing_only(model, ()):
            logits_of(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def view_gradients(model: nn.Layer, batch: Batch) -> dict[str, dict[str, OperandView]]:
    """By layer and operand, every quantized gradient in one training step that changes nothing; none for QAT.

    >>> view_gradients(model, batch)["conv1"]["grad_input.grad_output"].health.sqnr  # doctest: +SKIP
    17.2
    """
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = paddle.get_rng_state()
    try:
        model.train()
        with watching(model, view_operand) as seen:
            if not seen:
                return {}
            F.cross_entropy(logits_of(model, batch), paddle.to_tensor(batch.labels)).backward()
    finally:
        model.eval()
        model.set_state_dict(before)
        model.clear_gradients()
        paddle.set_rng_state(random_state)
    return {
        layer: {operand: view for operand, view in operands.items() if operand in GRADIENTS}
        for layer, operands in seen.items()
    }


def view_operand(x: Tensor, made: QTensor) -> OperandView:
    """What became of x: integers have a histogram in steps of their grid, plain values (bf16) have none.

    A gradient that is the mean of several roundings has the steps of the mean.
    """
    bounds = {"lowest": made.lowest, "highest": made.highest}
    health = measure_stats(x, made.data, made.scale, **bounds, most=_ENOUGH)
    if made.scale is None or not made.is_integer:
        return OperandView(health)
    steps = (x.detach() / made.scale).numpy().ravel()
    stride = max(1, steps.size // _ENOUGH)
    return OperandView(health, level_histogram(steps[::stride], **bounds))
