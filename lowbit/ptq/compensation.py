"""Error compensation (GPTQ): weights, scales and biases make up for errors of inputs and earlier weights.

A layer gets quantized inputs x (with `full_inputs`, inputs that only earlier weights have changed) and shall
give what W·f is in the fp32 network. Without rounding the best weight is W·C·H⁻¹, where H is the covariance
of x and C that of f with x; means are left to the bias. Few images say little about many inputs: how far the
weight may go is tried on images that it was not made from.

The squared error of a rounded weight then depends on H alone: weights are rounded column by column, those
with the largest inputs first, and the columns that are left move so that the error becomes smallest. This is
done for several scales, of which each output channel takes its best. It is where learned rounding starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.nn.quantizer import Quantizer
from lowbit.ptq.block_data import BlockData
from lowbit.ptq.blocks import Block
from lowbit.ptq.learned_rounding import quantizers_of, weight_scale

_IMAGES = 64, 512  # that are looked at: of large images fewer, which have
_POSITIONS = 1 << 20  # together
_BATCH = 32
# Added to the diagonal of H, relative to its mean, which keeps weights near where they were.
_DAMPINGS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, math.inf)
# Of layers with coarse inputs: a weight that is fitted to noisy inputs gives smaller outputs, for which the
# calibrated step of the next layer's inputs is too large.
_DAMPINGS_OF_COARSE_INPUTS = (1.0, 3.0, math.inf)
_FINE = 64  # levels above 0 from which on a grid is not coarse, and the calibrated scale good enough
_SCALES = np.linspace(0.7, 1.3, 25)  # that are tried, relative to the calibrated one


class _Seen(Exception):
    """Ends a run of the block: what was wanted of the layer is known."""


def is_compensated(layer: nn.Layer) -> bool:
    """Whether `compensate_block` changes this layer's weight."""
    return isinstance(layer, nn.Conv2D | nn.Linear)


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
    count = _enough_images(data.full.shape)
    images, full = data.quantized[:count], data.full[:count]
    for name, expected in _output_means(originals, block, names, full).items():
        layer, norm = layers[name], norms.get(id(layers[name]))
        if is_compensated(layer):
            # The first and the second half of the images, or the only one twice.
            middle = len(images) // 2
            halves = [
                _moments([(layers, layer, images[half]), (originals, originals[name], full[half])], block)
                for half in (slice(middle or 1), slice(middle, None))
            ]
            has_bias = norm is not None or layer.bias is not None
            _compensate_layer(layer, weights[id(layer)], halves, centred=has_bias)
        wrong = _output_means(layers, block, [name], images)[name] - expected
        _shift(layer, norm, -wrong)


def _enough_images(shape: Sequence[int]) -> int:
    """How many images to look at, given the shape of a block's inputs."""
    positions = int(np.prod(shape[2:])) if len(shape) == 4 else 1
    return int(np.clip(_POSITIONS // positions, *_IMAGES))


def _output_means(
    layers: Mapping[str, nn.Layer], block: Block, names: Sequence[str], x: np.ndarray
) -> dict[str, np.ndarray]:
    """The mean of each output channel of these layers, in the order of their calls."""
    sums: dict[str, np.ndarray] = {}

    def look(name: str) -> Callable[..., None]:
        def gather(layer: nn.Layer, _given: tuple[Tensor, ...], y: Tensor) -> None:
            channels = y.ndim - 1 if isinstance(layer, nn.Linear) or layer._data_format.endswith("C") else 1
            mean = y.mean([axis for axis in range(y.ndim) if axis != channels]).numpy()
            sums[name] = sums.get(name, 0) + mean.astype(np.float64) * (y.shape[0] / len(x))
            if len(names) == 1:
                raise _Seen

        return gather

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


@dataclass(frozen=True)
class Moments:
    """Of some images: how many inputs there are, means of x and f, sums of x·xᵀ and f·xᵀ without the means.

    Of each group of a layer. Means are taken out before values are multiplied: of inputs that hardly vary,
    rounding errors would be left otherwise.
    """

    count: int
    x: np.ndarray  # [groups, d, 1]
    f: np.ndarray
    xx: np.ndarray  # [groups, d, d]
    fx: np.ndarray

    @classmethod
    def of(cls, x: Tensor, f: Tensor) -> Moments:
        """Those of columns as `_columns` makes them."""
        x_mean, f_mean = (tensor.mean([0, 3], keepdim=True) for tensor in (x, f))
        x, f = x - x_mean, f - f_mean
        sums = [paddle.matmul(tensor, x, transpose_y=True).sum(0) for tensor in (x, f)]
        found = [x_mean[0], f_mean[0], *sums]
        return cls(x.shape[0] * x.shape[3], *(tensor.numpy().astype(np.float64) for tensor in found))

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        share = other.count / count
        x, f = other.x - self.x, other.f - self.f
        apart = x.swapaxes(1, 2) * self.count * share  # between the two means
        return Moments(
            count,
            self.x + share * x,
            self.f + share * f,
            self.xx + other.xx + x * apart,
            self.fx + other.fx + f * apart,
        )

    def covariances(self, *, centred: bool) -> tuple[np.ndarray, np.ndarray]:
        """H and C, without the means where these are left to a bias."""
        h, c = self.xx / self.count, self.fx / self.count
        if centred:
            return h, c
        x = self.x.swapaxes(1, 2)
        return h + self.x * x, c + self.f * x


def _moments(networks: Sequence[_Network], block: Block) -> Moments:
    """Those of all images; the first network is the quantized one."""
    parts = []
    for at in range(0, len(networks[0][2]), _BATCH):
        x, f = (_layer_columns(block, *network[:2], network[2][at : at + _BATCH]) for network in networks)
        parts.append(Moments.of(x, f))
    return reduce(add, parts)


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


def _compensate_layer(
    layer: nn.Layer, quantizer: Quantizer, halves: Sequence[Moments], *, centred: bool
) -> None:
    """Give the layer its compensated weight, and its weight's quantizer the scales that go with it."""
    weight, scale = layer.weight.numpy(), weight_scale(quantizer)
    transposed, groups = isinstance(layer, nn.Linear), len(halves[0].x)

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
    inputs = layer.input_quantizer.grid()
    dampings = _DAMPINGS_OF_COARSE_INPUTS if inputs.is_integer and inputs.highest < _FINE else _DAMPINGS
    parts = [half.covariances(centred=centred) for half in halves]
    damping = choose_damping(rows(weight), parts, dampings)
    h, c = (halves[0] + halves[1]).covariances(centred=centred)
    target = best_weight(rows(weight), h, c, damping)
    h = _damped(h, min(damping, 1.0))
    found, factor = compensate_with_best_scale(target, start, h, grid.lowest, grid.highest, factors)
    layer.weight.set_value(whole(found).astype(np.float32))
    if factors.size > 1:
        quantizer.set_scale(scale * paddle.to_tensor(factor.astype(np.float32)).reshape(scale.shape))


def choose_damping(
    weight: np.ndarray,
    halves: Sequence[tuple[np.ndarray, np.ndarray]],
    dampings: Sequence[float] = _DAMPINGS,
) -> float:
    """The damping whose weight, made from H and C of half of the images, has the least error on the others.

    Infinite, which leaves the weight as it is, where nothing is better.
    """
    errors = [0.0] * len(dampings)
    for (h, c), (other_h, other_c) in (halves, halves[::-1]):
        expected = weight @ other_c
        for number, damping in enumerate(dampings):
            made = best_weight(weight, h, c, damping)
            # The squared error but for the part that is the same for all.
            errors[number] += float(((made @ other_h - 2 * expected) * made).sum())
    return dampings[int(np.argmin(errors))]


def best_weight(weight: np.ndarray, h: np.ndarray, c: np.ndarray, damping: float) -> np.ndarray:
    """W·C·H⁻¹ with a penalty on the distance to W."""
    if math.isinf(damping):
        return weight
    change = np.linalg.solve(_damped(h, damping), (weight @ (c - h)).swapaxes(1, 2))
    return weight + change.swapaxes(1, 2)


def _damped(h: np.ndarray, damping: float) -> np.ndarray:
    h = h.copy()
    diagonal = np.einsum("gii->gi", h)  # a view
    diagonal += np.where(diagonal > 0, 0, 1)  # inputs that are always the same say nothing
    diagonal += damping * diagonal.mean(axis=1, keepdims=True)
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
    """Weights, [groups, rows, d], as they are when their turn to be rounded comes; `gram` is [groups, d, d],
    positive definite.

    >>> gram = np.array([[[1.0, 0.9], [0.9, 1.0]]])
    >>> compensate(np.array([[[0.4, 0.4]]]), np.ones([1, 1, 2]), gram, -8, 7).round().tolist()
    [[[0.0, 1.0]]]
    """
    size = gram.shape[-1]
    order = np.argsort(-np.einsum("gii->gi", gram), axis=1, kind="stable")
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
