"""Cross-layer equalization: channels between two layers get like ranges, and the network computes the same.

If y = B(relu(A(x))), every channel of A's output can be divided by a factor and the weights that B multiplies
it with multiplied by the same. The factor shares the difficulty between B's input, which has one scale for
all channels, and B's weights: s = sqrt(largest input / largest weight) of the channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.nn.bn_folding import along_weight, find_foldable
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.quant_layers import is_quantized
from lowbit.ptq.learned_rounding import unquantized

_LARGEST = 8.0  # a factor, and its inverse
_TOLERANCE = 1e-5  # of the largest answer
_FEW = 2  # images for the proof, which takes a run for each pair


@dataclass(frozen=True, eq=False)
class _Pair:
    """A layer whose outputs the next one reads; scaled with its batch norm, if it has one."""

    first: nn.Layer
    norm: nn.Layer | None
    second: nn.Layer

    def scale(self, factor: np.ndarray) -> None:
        """Divide the first layer's outputs, multiply the second one's weights."""
        by = paddle.to_tensor(factor.astype(np.float32))
        for tensor, shape in self._outputs():
            tensor.set_value(tensor / by.reshape(shape))
        self.second.weight.set_value(self.second.weight * _along_inputs(self.second, by))

    def _outputs(self) -> list[tuple[Tensor, list[int]]]:
        if self.norm is not None:
            return [(self.norm.weight, [-1]), (self.norm.bias, [-1])]
        shape = along_weight(self.first, paddle.ones([_outputs_of(self.first)])).shape
        found: list[tuple[Tensor, list[int]]] = [(self.first.weight, list(shape))]
        return found if self.first.bias is None else [*found, (self.first.bias, [-1])]


def equalize(model: nn.Layer, *inputs: Tensor) -> list[tuple[str, str]]:
    """Equalize, in place, every pair of quantized layers between which only a ReLU stands; their names.

    Which pairs those are is proved by running the prepared model on `inputs`, in full precision: dividing and
    multiplying by powers of two must leave the answers as they are. Calibrate afterwards. Networks with
    ReLU6 or hard-swish between their layers have no such pairs.

    equalize(model, images)
    """
    names = {id(layer): name for name, layer in model.named_sublayers(include_self=True)}
    with eval_mode(model), unquantized(model):
        calls, _ = _calls(model, inputs)
        few = tuple(x[:_FEW] for x in inputs)
        answers = _answers(model, few)
        layers = dict(model.named_sublayers())
        norms = {id(layers[a]): layers[b] for a, b in find_foldable(model, *few, quantized=True).pairs}
        once = [call for call in calls if sum(other[0] is call[0] for other in calls) == 1]
        done = []
        for (first, _), (second, given) in pairwise(once):
            pair = _Pair(first, norms.get(id(first)), second)
            if _fits(pair) and _is_proved(pair, model, few, answers):
                pair.scale(_factors(second, given))
                done.append((names[id(first)], names[id(second)]))
    return done


def _calls(
    model: nn.Layer, inputs: tuple[Tensor, ...]
) -> tuple[list[tuple[nn.Layer, Tensor]], list[np.ndarray]]:
    """The quantized layers in the order of their calls, with what they got; the network's answers."""
    calls: list[tuple[nn.Layer, Tensor]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, given: calls.append((layer, given[0])))
        for layer in model.sublayers(include_self=True)
        if is_quantized(layer)
    ]
    try:
        return calls, _answers(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()


def _answers(model: nn.Layer, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
    flat = paddle.utils.flatten(model(*inputs))
    return [out.numpy() for out in flat if isinstance(out, Tensor)]


def _fits(pair: _Pair) -> bool:
    """Whether the channels can be the same ones, and all that is scaled belongs to the two layers."""
    if isinstance(pair.second, nn.Conv2DTranspose) or pair.second.weight is pair.first.weight:
        return False
    if pair.norm is not None and (pair.norm.weight is None or pair.norm.bias is None):
        return False
    return _outputs_of(pair.first) == _inputs_of(pair.second)


def _is_proved(pair: _Pair, model: nn.Layer, inputs: tuple[Tensor, ...], expected: list[np.ndarray]) -> bool:
    """Whether powers of two, which no product or sum rounds, leave the answers as they are."""
    state = [(t, t.clone()) for t in (*(t for t, _ in pair._outputs()), pair.second.weight)]
    factor = np.exp2(np.arange(_inputs_of(pair.second)) % 4 - 1.0)
    try:
        pair.scale(factor)
        found = _answers(model, inputs)
    finally:
        for tensor, before in state:
            tensor.set_value(before)
    return all(
        bool(np.isfinite(a).all()) and np.abs(a - b).max() <= _TOLERANCE * max(np.abs(a).max(), 1e-30)
        for a, b in zip(expected, found, strict=True)
    )


def _factors(layer: nn.Layer, x: Tensor) -> np.ndarray:
    """What the channels of a layer's input are divided by; 1 on average."""
    channels_last = isinstance(layer, nn.Linear) or layer._data_format.endswith("C")
    axis = x.ndim - 1 if channels_last else 1
    signal = x.abs().max([a for a in range(x.ndim) if a != axis]).numpy().astype(np.float64)
    weight = _largest_weights(layer)
    ratio = np.sqrt(np.maximum(signal, 1e-12) / np.maximum(weight, 1e-12))
    ratio = np.where((signal > 0) & (weight > 0), ratio, np.nan)
    ratio = ratio / np.exp(np.nanmean(np.log(ratio))) if np.isfinite(ratio).any() else ratio
    return np.clip(np.nan_to_num(ratio, nan=1.0), 1 / _LARGEST, _LARGEST)


def _largest_weights(layer: nn.Layer) -> np.ndarray:
    """The largest weight that each input channel is multiplied with."""
    weight = np.abs(layer.weight.numpy())
    if isinstance(layer, nn.Linear):
        return weight.max(1)
    by_group = weight.reshape(layer._groups, -1, *weight.shape[1:])  # [groups, outputs, inputs, …]
    return by_group.max(axis=(1, *range(3, by_group.ndim))).reshape(-1)


def _along_inputs(layer: nn.Layer, factor: Tensor) -> Tensor:
    """A number per input channel in the shape in which it is broadcast against the weight."""
    if isinstance(layer, nn.Linear):
        return factor.reshape([-1, 1])
    outputs = layer._out_channels // layer._groups
    rows = paddle.repeat_interleave(factor.reshape([layer._groups, -1]), outputs, axis=0)
    return rows.unsqueeze([2, 3])


def _outputs_of(layer: nn.Layer) -> int:
    return layer.weight.shape[1] if isinstance(layer, nn.Linear) else layer._out_channels


def _inputs_of(layer: nn.Layer) -> int:
    return layer.weight.shape[0] if isinstance(layer, nn.Linear) else layer._in_channels
