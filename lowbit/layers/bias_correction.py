"""Bias correction: what the rounded weights add to a layer's outputs on average is taken out of its bias.

A weight's rounding errors are the same for every image. Where inputs are not zero on average, as behind a
ReLU, they shift whole channels, most of all in depthwise convolutions, which add up few products. What
quantizing the *input* shifts stays: that is the mean of rare, large, clipped values, and to spread it
over all other outputs makes them worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.layers.across_ranks import mean_across_ranks
from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.quantized import is_quantized


def correct_biases(model: nn.Layer, batches: Iterable[Tensor | Sequence[Tensor]]) -> int:
    """Take the mean of (Q(W) - W)·Q(x) out of the bias of every quantized layer; returns how many those are.

    Once, behind `calibrate` and on its batches: a second time would take it out twice. The layers have a
    bias if the model was prepared with `calibration: {correct_bias: true}`.

    calibrate(model, batches)
    correct_biases(model, batches)
    """
    layers = [layer for layer in model.sublayers(include_self=True) if is_quantized(layer)]
    if without := [layer for layer in layers if layer.bias is None]:
        raise LowbitError(
            f"{len(without)} quantized layers have no bias to correct: prepare the model with a recipe that "
            "has calibration: {steps: 10, correct_bias: true}"
        )
    shifts: dict[int, list[Tensor]] = {id(layer): [] for layer in layers}

    def look(layer: nn.Layer, given: Sequence[Any], _output: Tensor) -> None:
        shifts[id(layer)].append(mean_across_ranks(_shift(layer, *given)))

    hooks = [layer.register_forward_post_hook(look) for layer in layers]
    try:
        with eval_mode(model):
            for batch in batches:
                model(*batch) if isinstance(batch, list | tuple) else model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    corrected = 0
    for layer in layers:
        if not (seen := shifts[id(layer)]):
            continue
        shift = paddle.add_n(seen) / len(seen)
        if bool(paddle.isfinite(shift).all()):
            layer.bias.set_value(layer.bias - shift.cast(layer.bias.dtype))
            corrected += 1
    return corrected


def give_bias(layer: nn.Layer) -> None:
    """Let a layer without a bias have one, of zeros."""
    if layer.bias is None:
        outputs = layer.weight.shape[1] if isinstance(layer, nn.Linear) else layer._out_channels
        layer.bias = layer.create_parameter([outputs], dtype=layer.weight.dtype, is_bias=True)


def _shift(layer: nn.Layer, x: Tensor, *geometry: Any) -> Tensor:
    """What rounding the weight adds to each output channel, averaged over the batch."""
    weight, _ = layer.effective_weight_and_bias()
    error = layer.weight_quantizer(weight) - weight
    added = layer.product(layer.input_quantizer(x), error, None, *geometry)
    channels = added.ndim - 1 if isinstance(layer, nn.Linear) or layer._data_format.endswith("C") else 1
    return added.mean([axis for axis in range(added.ndim) if axis != channels])
