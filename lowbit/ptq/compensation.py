"""Error compensation (GPTQ): weights and biases make up for the rounding errors of earlier weights.

For outputs W·x the squared error of a rounded weight depends on the inputs by H = sum of x·xᵀ alone. Weights
are rounded column by column, those with the largest inputs first, and the columns that are left move so that
the error becomes smallest. This takes one pass over the inputs and is where learned rounding starts from.
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

IMAGES = 256  # that are looked at
_BATCH = 32
_DAMPING = 0.01  # added to the diagonal of H, relative to its mean


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
        layer = layers[name]
        if isinstance(layer, nn.Conv2D | nn.Linear):
            gram = _gram(layers, block, layer, images)
            layer.weight.set_value(_compensated_weight(layer, weights[id(layer)], gram))
        wrong = _output_means(layers, block, [name], images)[name] - expected
        _shift(layer, norms.get(id(layer)), -wrong)


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


def _gram(layers: Mapping[str, nn.Layer], block: Block, layer: nn.Layer, x: np.ndarray) -> np.ndarray:
    """H of each group of the layer, [groups, d, d]."""
    total: list[np.ndarray] = []

    def look(_layer: nn.Layer, given: tuple[Tensor, ...]) -> None:
        columns = _columns(layer, layer.input_quantizer(given[0]))
        found = paddle.matmul(columns, columns, transpose_y=True).sum(0).numpy().astype(np.float64)
        total[:] = [total[0] + found if total else found]
        raise _Seen

    _run(layers, block, x, [layer.register_forward_pre_hook(look)])
    return total[0]


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


def _compensated_weight(layer: nn.Layer, quantizer: Quantizer, gram: np.ndarray) -> np.ndarray:
    """The layer's new weight, in its own layout."""
    weight = layer.weight.numpy()
    scale = np.broadcast_to(weight_scale(quantizer).numpy(), weight.shape)
    groups = gram.shape[0]

    def rows(a: np.ndarray) -> np.ndarray:
        a = a.T if isinstance(layer, nn.Linear) else a
        return a.reshape(groups, a.shape[0] // groups, -1).astype(np.float64)

    grid = quantizer.grid()
    made = compensate(rows(weight), rows(scale), gram, grid.lowest, grid.highest).astype(np.float32)
    if isinstance(layer, nn.Linear):
        return made.reshape(weight.shape[::-1]).T
    return made.reshape(weight.shape)


def compensate(
    weight: np.ndarray, scale: np.ndarray, gram: np.ndarray, lowest: int, highest: int
) -> np.ndarray:
    """Weights, [groups, rows, d], as they are when their turn to be rounded comes; `gram` is [groups, d, d].

    >>> gram = np.array([[[1.0, 0.9], [0.9, 1.0]]])
    >>> compensate(np.array([[[0.4, 0.4]]]), np.ones([1, 1, 2]), gram, -8, 7).round().tolist()
    [[[0.0, 1.0]]]
    """
    size = gram.shape[-1]
    gram = gram.copy()
    diagonal = np.einsum("gii->gi", gram)  # a view
    diagonal += np.where(diagonal > 0, 0, 1)  # inputs that are always 0 say nothing
    order = np.argsort(-diagonal, axis=1, kind="stable")
    diagonal += _DAMPING * diagonal.mean(axis=1, keepdims=True)
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
