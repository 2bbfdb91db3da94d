"""What quantizing does to each layer's operands on some images: weight, input and, in training, gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from lowbit.data import Batch
from lowbit.layers.quantizing_only import quantized_layers, quantizing_only
from lowbit.layers.watch import watching
from lowbit.layers.weights_at_rest import weight_health, weight_histogram
from lowbit.numerics.health import Health, measure_health
from lowbit.numerics.level_histogram import LevelHistogram, level_histogram

_ENOUGH = 1 << 18  # values that stand for an input


@dataclass(frozen=True)
class OperandView:
    """Health and histogram of one operand; None where it is on no grid."""

    health: Health | None = None
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

    def look(name: str):
        def hook(layer: nn.Layer, inputs: Sequence[Tensor]) -> None:
            # Its own attribute is hidden while the layer runs in full precision.
            quantizer = layer._sub_layers["input_quantizer"]
            if quantizer.gives_integers and name not in found:
                found[name] = _view(inputs[0], quantizer)

        return hook

    hooks = [layer.register_forward_pre_hook(look(name)) for name, layer in quantized_layers(model).items()]
    try:
        with quantizing_only(model, ()):
            model(paddle.to_tensor(batch.images))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def view_gradients(model: nn.Layer, batch: Batch) -> dict[str, dict[str, float]]:
    """The SQNR of every quantized gradient in one training step that changes nothing; none for QAT.

    >>> view_gradients(model, batch)["conv1"]["grad_input.grad_output"]  # doctest: +SKIP
    17.2
    """
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = paddle.get_rng_state()
    try:
        model.train()
        with watching(model) as seen:
            if not seen:
                return {}
            logits = model(paddle.to_tensor(batch.images)).astype("float32")
            F.cross_entropy(logits, paddle.to_tensor(batch.labels)).backward()
    finally:
        model.eval()
        model.set_state_dict(before)
        model.clear_gradients()
        paddle.set_rng_state(random_state)
    return {
        layer: {
            operand: health.sqnr
            for operand, health in operands.items()
            if operand.endswith("grad_output") and math.isfinite(health.sqnr)
        }
        for layer, operands in seen.items()
    }


def _view(x: Tensor, quantizer: nn.Layer) -> OperandView:
    grid = quantizer.grid()
    integers, scale = quantizer.integers(x)
    health = measure_health(x, integers, scale, lowest=grid.lowest, highest=grid.highest, most=_ENOUGH)
    steps = (x / scale).numpy().ravel()
    stride = max(1, steps.size // _ENOUGH)
    return OperandView(health, level_histogram(steps[::stride], grid.lowest, grid.highest))
