"""Scales with which all engines round alike: no result is near the middle of two integers.

An engine multiplies an integer sum by M = input scale · weight scale / output scale, in fp32, and rounds.
Where the product is next to n + 1/2, the last bits of fp32 decide, which every engine computes in its own
order. One such integer in 100,000 is enough: the layers behind make more of it, and the class may differ.

If M = p / q with an odd q, every product is a multiple of 1/q, and 2·sum·p = (2n + 1)·q has no solution: all
products stay 1/(2q) away from the middle, far more than fp32 loses. The same holds for a sum of two tensors
whose scales are p1/q and p2/q of the result's. So scales are moved by less than a percent, to such ratios.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import nn

from lowbit.nn.edges import RoundedOperator
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.int_forward import forward_is_of_integers, per_output
from lowbit.nn.quantizer import Quantizer

ROUNDINGS = "_lowbit_roundings"  # on a model with `outputs: quantized`: its Roundings
_SUM = 255  # the odd denominator of sums
_MOST = 4001  # the largest denominator
_CHANGE = 0.005  # of a weight's scale, at most
_SUM_CHANGE = 0.01  # of a sum's or its operand's scale, at most
_SAME = 2e-7  # relative: what fp32 makes of a ratio


def odd_ratio(value: np.ndarray, *, change: float = _CHANGE) -> np.ndarray:
    """The ratios p/q with the smallest odd q that are at least `value`, and at most `change` above it.

    A value that is such a ratio already, but for fp32's last bits, gives that ratio, also of a larger q.

    >>> odd_ratio(np.array([0.0331])).round(6)
    array([0.033113])
    """
    value = np.asarray(value, np.float64)
    found = np.array(value)
    left = np.isfinite(value) & (value > 0)
    for q in range(1, _MOST + 1, 2):
        p = np.rint(value * q)
        fits = left & (np.abs(p / q - value) <= _SAME * value) & (p * change <= 1)
        found[fits] = (p / q)[fits]
        left &= ~fits
    for q in range(1, _MOST + 1, 2):
        ratio = np.ceil(value * q * (1 - 1e-12)) / q
        fits = left & (ratio <= value * (1 + change))
        found[fits] = ratio[fits]
        left &= ~fits
        if not left.any():
            break
    return found


def align_scales(model: nn.Layer) -> int:
    """Move the scales of a calibrated model to ratios that every engine rounds alike; how many layers.

    Activations' scales first, along the network: those of sums and means. Then each weight's, per output
    channel. Layers whose weight scales are chosen by another observer than `minmax` stay. A second time
    changes nothing.
    """
    roundings: Sequence[RoundedOperator] = getattr(model, ROUNDINGS, ())
    layers, moved = dict(model.named_sublayers()), 0
    settled: set[int] = set()  # quantizers of earlier sums and means, which must not move again
    with eval_mode(model):
        for one in roundings:
            if one.kind == "layer":  # its weight follows the scales around it, below
                continue
            sources = [_quantizer(layers, at) for at in one.sources]
            target = _quantizer(layers, one.target)
            if one.kind == "sum":
                _align_sum(sources, target, settled)
            elif one.kind == "mean":
                _align_mean(sources[0], target, one.count, settled)
            settled.update(id(quantizer) for quantizer in (*sources, target))
        for one in roundings:
            if one.kind == "layer":
                norm = layers[one.batch_norm] if one.batch_norm else None
                moved += _align_weight(layers[one.layer], norm, _quantizer(layers, one.target))
    return moved


def _quantizer(layers: dict[str, nn.Layer], at: tuple[str, str]) -> Quantizer:
    found = getattr(layers[at[0]], f"{at[1]}_quantizer")
    return getattr(found, "source", found)


def _scale(quantizer: Quantizer) -> float:
    return float(quantizer.scale().numpy().reshape([-1])[0])


def _set_scale(quantizer: Quantizer, scale: float) -> None:
    change = scale / _scale(quantizer)
    if abs(change - 1) > _SAME:
        part = quantizer.step.value if quantizer.step is not None else quantizer.kept.range
        part.set_value(part * change)


def _align_sum(sources: list[Quantizer], target: Quantizer, settled: set[int]) -> None:
    """Scales of the operands as p/255 of the result's; of two that are settled the larger is enough.

    A scale that would move by more than a percent, as that of an operand far smaller than the sum, stays.
    """
    fixed = [_scale(one) for one in sources if id(one) in settled]
    if fixed and id(target) not in settled:
        _set_scale(target, max(fixed) / _near(max(fixed) / _scale(target)))
    for one in sources:
        if id(one) not in settled:
            _set_scale(one, _scale(target) * _near(_scale(one) / _scale(target)))


def _near(ratio: float) -> float:
    """The nearest p/255 if it is within a percent, else the ratio itself.

    >>> _near(0.4), _near(0.0021)
    (0.4, 0.0021)
    """
    found = round(_SUM * ratio) / _SUM
    return found if abs(found / ratio - 1) <= _SUM_CHANGE else ratio


def _align_mean(source: Quantizer, target: Quantizer, count: int, settled: set[int]) -> None:
    if id(target) not in settled:
        ratio = float(odd_ratio(np.array([_scale(source) / (count * _scale(target))]))[0])
        _set_scale(target, _scale(source) / (count * ratio))


def _align_weight(layer: nn.Layer, norm: nn.Layer | None, target: Quantizer) -> int:
    quantizer = layer.weight_quantizer
    if (
        hasattr(layer, "fold")
        or not forward_is_of_integers(layer)
        or quantizer.spec.observer.name != "minmax"
    ):
        return 0
    if quantizer.spec.keeps_scales or isinstance(layer, nn.Conv2DTranspose):
        return 0
    _, scale = quantizer.integers(layer.weight)
    outputs = layer.weight.shape[1] if isinstance(layer, nn.Linear) else layer._out_channels
    step = np.broadcast_to(per_output(layer, scale).numpy().reshape([-1]), [outputs]).astype(np.float64)
    gain = np.ones(outputs)
    if norm is not None:
        gain = 1 / np.sqrt(norm._variance.numpy().astype(np.float64) + norm._epsilon)
        gain = np.abs(gain * (1 if norm.weight is None else norm.weight.numpy()))
    ratio = _scale(layer.input_quantizer) * step * gain / _scale(target)
    shown = (ratio > 1e-9) & np.isfinite(ratio)
    factor = np.where(shown, odd_ratio(np.where(shown, ratio, 1.0)) / np.where(shown, ratio, 1.0), 1.0)
    factor = np.where(np.abs(factor - 1) <= _SAME, 1.0, factor)
    # The scale is that of the largest weight of a channel: moved with it, its integer stays the largest.
    weight = layer.weight.numpy()
    rows = weight.T if isinstance(layer, nn.Linear) else weight.reshape([outputs, -1])
    largest = np.abs(rows) >= np.abs(rows).max(axis=1, keepdims=True)
    rows = np.where(largest, rows * factor[:, None], rows).astype(weight.dtype)
    new = rows.T if isinstance(layer, nn.Linear) else rows.reshape(weight.shape)
    layer.weight.set_value(paddle.to_tensor(np.ascontiguousarray(new)))
    return 1
