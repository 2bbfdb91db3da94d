"""Error compensation (GPTQ): weights, scales and biases make up for errors of inputs and earlier weights.

A layer gets quantized inputs x and shall give what W·f is in the fp32 network. Without rounding the best
weight is W·C·H⁻¹, where H is the covariance of x and C that of f with x; means are left to the bias. The
squared error of a rounded weight then depends on H alone: weights are rounded column by column, those with
the largest inputs first, and the columns that are left move so that the error becomes smallest. This is done
for several scales, of which each output channel takes its best. It takes one pass over the inputs and is
where learned rounding starts from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.nn.quantizer import Quantizer
from lowbit.ptq.block_data import BlockData
from lowbit.ptq.blocks import Block
from lowbit.ptq.learned_rounding import quantizers_of, weight_scale

IMAGES = 512  # that are looked at
_BATCH = 32
_DAMPING = 0.01  # added to the diagonal of H, relative to its mean
_FINE = 64  # levels above 0 from which on the calibrated scale is good enough
_SCALES = np.linspace(0.7, 1.3, 25)  # that are tried, relative to the calibrated one


class _Seen(Exception):
    """Ends a run of the block: what was wanted of the layer is known."""


def compensate_block(
    layers: Mapping[str, nn.Layer],
    originals: Mapping[str, nn.Layer],
    block: Block,
    norms: Mapping[int, nn.Layer],
    data: BlockData,
) -> None:
    """Compensate weights and biases of a block's layers, in place, in the order in which they run.

    Afterwards round-to-nearest gives the integers that were found, and every layer's outputs have the mean of
    those in the fp32 network, whose layers are `originals`: the bias of the batch norm in `norms`, or of the
    layer, makes up for the rest. Weights of transposed convolutions stay.
    """
    weights = {
        id(owner): quantizer
        for module in block.modules
        for owner, _, quantizer in quantizers_of(layers[module])
        if quantizer.role == "weight"
    }
    names = [name for name, layer in layers.items() if id(layer) in weights]
    images, full = data.quantized[:IMAGES], data.full[:IMAGES]
    for name, expected in _output_means(originals, block, names, full).items():
        layer, norm = layers[name], norms.get(id(layers[name]))
        if isinstance(layer, nn.Conv2D | nn.Linear):
            moments = _moments(
                [(layers, layer, images), (originals, originals[name], full)],
                block,
                centred=norm is not None or layer.bias is not None,
            )
            _compensate_layer(layer, weights[id(layer)], *moments)
        wrong = _output_means(layers, block, [name], images)[name] - expected
        _shift(layer, norm, -wrong)


def _output_means(
    layers: Mapping[str, nn.Layer], block: Block, names: Sequence[str], x: np.ndarray
) -> dict[str, np.ndarray]:
    """The mean of each output channel of these layers, in the order of their calls."""
    sums: dict[str, np.ndarray] = {}

    def look(name: str) -> Callable[..., None]:
        def add(layer: nn.Layer, _given: tuple[Tensor, ...], y: Tensor) -> None:
            channels = y.ndim - 1 if isinstance(layer, nn.Linear) or layer._data_format.endswith("C") else 1
            mean = y.mean([axis for axis in range(y.ndim) if axis != channels]).numpy()
            sums[name] = sums.get(name, 0) + mean.astype(np.float64) * (y.shape[0] / len(x))
            if len(names) == 1:
                raise _Seen

        return add

    hooks = [layers[name].register_forward_post_hook(look(name)) for name in names]
    _run(layers, block, x, hooks)
    return sums


def _shift(layer: nn.Layer, norm: nn.Layer | None, by: np.ndarray) -> None:
    """Add a number to each output channel of the layer, in the batch norm behind it or in its own bias."""
    shift = paddle.to_tensor(by.astype(np.float32))
    if norm is not None:
        gain = norm.weight * paddle.rsqrt(norm._variance + norm._epsilon)
        norm.bias.set_value(norm.bias + gain * shift)
    elif layer.bias is not None:
        layer.bias.set_value(layer.bias + shift)


_Network = tuple[Mapping[str, nn.Layer], nn.Layer, np.ndarray]  # its layers, one of them, the block's inputs


def _moments(networks: Sequence[_Network], block: Block, *, centred: bool) -> tuple[np.ndarray, np.ndarray]:
    """H and C of each group of a layer, [groups, d, d]; the first network is the quantized one."""
    count = 0
    sums: list[np.ndarray] = []
    for at in range(0, len(networks[0][2]), _BATCH):
        x, f = (_layer_columns(block, *network[:2], network[2][at : at + _BATCH]) for network in networks)
        found = [
            paddle.matmul(x, x, transpose_y=True).sum(0),
            paddle.matmul(f, x, transpose_y=True).sum(0),
            x.sum([0, 3]).unsqueeze(-1),
            f.sum([0, 3]).unsqueeze(-1),
        ]
        arrays = [tensor.numpy().astype(np.float64) for tensor in found]
        sums = [a + b for a, b in zip(sums, arrays, strict=True)] if sums else arrays
        count += x.shape[0] * x.shape[3]
    h, c, x_sum, f_sum = sums
    if centred:
        h, c = (a - b @ x_sum.swapaxes(1, 2) / count for a, b in ((h, x_sum), (c, f_sum)))
    return h / count, c / count


def _layer_columns(block: Block, layers: Mapping[str, nn.Layer], layer: nn.Layer, x: np.ndarray) -> Tensor:
    """What the layer multiplies its weights with when the block runs on `x`."""
    caught: list[Tensor] = []

    def look(_layer: nn.Layer, given: tuple[Tensor, ...]) -> None:
        caught.append(_columns(layer, layer.input_quantizer(given[0])))
        raise _Seen

    _run(layers, block, x, [layer.register_forward_pre_hook(look)])
    return caught[0]


def _run(layers: Mapping[str, nn.Layer], block: Block, x: np.ndarray, hooks: Sequence[Any]) -> None:
    try:
        for at in range(0, len(x), _BATCH):
            with suppress(_Seen):
                block.run(layers, paddle.to_tensor(x[at : at + _BATCH]))
    finally:
        for hook in hooks:
            hook.remove()


def _columns(layer: nn.Layer, x: Tensor) -> Tensor:
    """What the layer multiplies its weights with, [images, groups, d, positions]."""
    if isinstance(layer, nn.Linear):
        return x.reshape([1, 1, -1, x.shape[-1]]).transpose([0, 1, 3, 2])
    x = layer.before_product(x)
    if layer._data_format == "NHWC":
        x = x.transpose([0, 3, 1, 2])
    padding = layer._padding if layer._padding_mode == "zeros" else 0
    kernel = layer.weight.shape[2:]
    if list(kernel) == [1, 1] and not np.any(padding):
        vertical, horizontal = layer._stride
        unfolded = x[:, :, ::vertical, ::horizontal].flatten(2)
    else:
        unfolded = F.unfold(x, kernel, layer._stride, padding, layer._dilation)
    return unfolded.reshape([x.shape[0], layer._groups, -1, unfolded.shape[-1]])


def _compensate_layer(layer: nn.Layer, quantizer: Quantizer, h: np.ndarray, c: np.ndarray) -> None:
    """Give the layer its compensated weight, and its weight's quantizer the scales that go with it."""
    weight, scale = layer.weight.numpy(), weight_scale(quantizer)
    transposed, groups = isinstance(layer, nn.Linear), h.shape[0]

    def rows(a: np.ndarray) -> np.ndarray:
        a = np.broadcast_to(a, weight.shape)
        a = a.T if transposed else a
        return a.reshape(groups, a.shape[0] // groups, -1).astype(np.float64)

    def whole(a: np.ndarray) -> np.ndarray:
        return a.reshape(weight.shape[::-1]).T if transposed else a.reshape(weight.shape)

    start, grid = rows(scale.numpy()), quantizer.grid()
    # Channels can choose scales of their own where each has one; with 8 bits there is little to gain.
    one_each = scale.size == start.shape[0] * start.shape[1]
    factors = _SCALES if one_each and grid.highest < _FINE else np.ones(1)
    target = _best_weight(rows(weight), h, c)
    found, factor = compensate_with_best_scale(target, start, h, grid.lowest, grid.highest, factors)
    layer.weight.set_value(whole(found).astype(np.float32))
    if factors.size > 1:
        quantizer.set_scale(scale * paddle.to_tensor(factor.astype(np.float32)).reshape(scale.shape))


def _best_weight(weight: np.ndarray, h: np.ndarray, c: np.ndarray) -> np.ndarray:
    """W·C·H⁻¹, drawn to W by the damping, which is a penalty on the distance."""
    return weight + np.linalg.solve(_damped(h), (weight @ (c - h)).swapaxes(1, 2)).swapaxes(1, 2)


def _damped(h: np.ndarray) -> np.ndarray:
    h = h.copy()
    diagonal = np.einsum("gii->gi", h)  # a view
    diagonal += np.where(diagonal > 0, 0, 1)  # inputs that are always the same say nothing
    diagonal += _DAMPING * diagonal.mean(axis=1, keepdims=True)
    return h


def compensate_with_best_scale(
    weight: np.ndarray, scale: np.ndarray, gram: np.ndarray, lowest: int, highest: int, factors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`compensate` with the scale times each factor: the best weights of each row, and their factor."""
    best = np.full(weight.shape[:2], np.inf)
    chosen, factor = weight, np.ones(weight.shape[:2])
    for each in factors:
        found = compensate(weight, scale * each, gram, lowest, highest)
        wrong = np.clip(np.rint(found / (scale * each)), lowest, highest) * scale * each - weight
        error = ((wrong @ gram) * wrong).sum(-1)
        better = error < best
        best = np.where(better, error, best)
        chosen, factor = np.where(better[..., None], found, chosen), np.where(better, each, factor)
    return chosen, factor


def compensate(
    weight: np.ndarray, scale: np.ndarray, gram: np.ndarray, lowest: int, highest: int
) -> np.ndarray:
    """Weights, [groups, rows, d], as they are when their turn to be rounded comes; `gram` is [groups, d, d].

    >>> gram = np.array([[[1.0, 0.9], [0.9, 1.0]]])
    >>> compensate(np.array([[[0.4, 0.4]]]), np.ones([1, 1, 2]), gram, -8, 7).round().tolist()
    [[[0.0, 1.0]]]
    """
    size = gram.shape[-1]
    order = np.argsort(-np.einsum("gii->gi", gram), axis=1, kind="stable")
    gram = _damped(gram)
    gram = np.take_along_axis(np.take_along_axis(gram, order[:, :, None], 1), order[:, None, :], 2)
    columns = np.broadcast_to(order[:, None, :], weight.shape)
    left, steps = np.take_along_axis(weight, columns, 2), np.take_along_axis(scale, columns, 2)
    # Row i of the upper factor says how the columns after i move when i has been rounded.
    factor = np.linalg.cholesky(np.linalg.inv(gram)).transpose(0, 2, 1)
    for i in range(size):
        rounded = np.clip(np.rint(left[:, :, i] / steps[:, :, i]), lowest, highest) * steps[:, :, i]
        error = (left[:, :, i] - rounded) / factor[:, None, i, i]
        left[:, :, i + 1 :] -= error[:, :, None] * factor[:, None, i, i + 1 :]
    found = np.empty_like(left)
    np.put_along_axis(found, columns, left, 2)
    return found
