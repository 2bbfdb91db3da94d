"""Operators in fp32 for the reference: layers, windows, functions of one number, shapes.

Sums are added one after the other, in the order of input channels, kernel rows and kernel columns. Other
means, norms and softmax, and functions such as the exponential, are computed in fp64 and rounded once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_F = np.float32


# ----------------------------------------------------------------------------------------------------------
# Windows: convolutions and pools.


def _geometry(
    shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    **_: Any,
) -> tuple[list[int], list[int], list[int]]:
    """Rows and columns of the result, and the padding in front of and behind an image."""
    out, before, after = [], [], []
    for axis in range(2):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        size, stride, front, behind = shape[axis], strides[axis], pads[axis], pads[2 + axis]
        if auto_pad.startswith("SAME"):
            every = max((-(-size // stride) - 1) * stride + reach - size, 0)
            front = every // 2 if auto_pad == "SAME_UPPER" else every - every // 2
            behind = every - front
        room = size + front + behind - reach
        count = room // stride + 1
        if ceil_mode:
            count = -(-room // stride) + 1
            count -= (count - 1) * stride >= size + front
        out.append(count)
        before.append(front)
        after.append(behind)
    return out, before, after


def _taps(
    x: np.ndarray,
    fill: Any,
    out: list[int],
    before: list[int],
    kernel: Sequence[int],
    strides: Any,
    dilations: Any,
) -> np.ndarray:
    """[kernel rows * columns, N, C, rows, columns]: what each tap of a window meets."""
    height, width = x.shape[2:]
    reach = [(out[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1 for axis in range(2)]
    padded = np.full(
        [*x.shape[:2], max(reach[0], height + before[0]), max(reach[1], width + before[1])], fill
    )
    padded = padded.astype(x.dtype)
    padded[:, :, before[0] : before[0] + height, before[1] : before[1] + width] = x
    found = []
    for i, j in itertools.product(range(kernel[0]), range(kernel[1])):
        rows = slice(i * dilations[0], i * dilations[0] + (out[0] - 1) * strides[0] + 1, strides[0])
        columns = slice(j * dilations[1], j * dilations[1] + (out[1] - 1) * strides[1] + 1, strides[1])
        found.append(padded[:, :, rows, columns])
    return np.stack(found)


def conv(
    x: np.ndarray, w: np.ndarray, bias: Any = None, *, add: type = _F, group: int = 1, **attributes: Any
) -> np.ndarray:
    out, before, _ = _geometry(x.shape[2:], w.shape[2:], **_window_attributes(attributes))
    strides, dilations = attributes.get("strides", (1, 1)), attributes.get("dilations", (1, 1))
    taps = _taps(x, 0, out, before, w.shape[2:], strides, dilations)
    per_group, inputs = w.shape[0] // group, w.shape[1]
    y: np.ndarray = np.zeros([x.shape[0], w.shape[0], *out], add)
    for g, c in itertools.product(range(group), range(inputs)):
        outputs = slice(g * per_group, (g + 1) * per_group)
        for tap in range(len(taps)):
            weight = w[outputs, c].reshape([per_group, -1])[:, tap]
            y[:, outputs] += weight[None, :, None, None] * taps[tap][:, g * inputs + c][:, None]
    return y if bias is None else y + bias.reshape([1, -1, 1, 1])


def _window_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != "kernel_shape"}


def _conv_transpose(
    x: np.ndarray,
    w: np.ndarray,
    bias: Any = None,
    *,
    group: int = 1,
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    output_padding: Sequence[int] = (0, 0),
    **_: Any,
) -> np.ndarray:
    full = [
        (x.shape[2 + a] - 1) * strides[a] + (w.shape[2 + a] - 1) * dilations[a] + 1 + output_padding[a]
        for a in range(2)
    ]
    y = np.zeros([x.shape[0], w.shape[1] * group, *full], _F)
    inputs, outputs = x.shape[1] // group, w.shape[1]
    for g, c, i, j in itertools.product(range(group), range(inputs), range(w.shape[2]), range(w.shape[3])):
        rows = slice(i * dilations[0], i * dilations[0] + (x.shape[2] - 1) * strides[0] + 1, strides[0])
        columns = slice(j * dilations[1], j * dilations[1] + (x.shape[3] - 1) * strides[1] + 1, strides[1])
        weight = w[g * inputs + c, :, i, j]
        y[:, g * outputs : (g + 1) * outputs, rows, columns] += (
            weight[None, :, None, None] * x[:, g * inputs + c][:, None]
        )
    y = y[:, :, pads[0] : full[0] - pads[2], pads[1] : full[1] - pads[3]]
    return y if bias is None else y + bias.reshape([1, -1, 1, 1])


def windows(
    x: np.ndarray,
    combine: np.ufunc,
    fill: Any,
    *,
    kernel_shape: Sequence[int],
    count_include_pad: int = 0,
    **more: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Windows combined, and how many values of the image (or its padding) each has."""
    out, before, after = _geometry(x.shape[2:], kernel_shape, **more)
    strides, dilations = more.get("strides", (1, 1)), more.get("dilations", (1, 1))
    taps = _taps(x, fill, out, before, kernel_shape, strides, dilations)
    counted = np.ones([1, 1, *x.shape[2:]], np.int64)
    if count_include_pad:
        counted = np.pad(counted, [(0, 0), (0, 0), (0, after[0]), (0, after[1])], constant_values=1)
        counted = np.pad(counted, [(0, 0), (0, 0), (before[0], 0), (before[1], 0)], constant_values=1)
        before = [0, 0]
    count = _taps(counted, 0, out, before, kernel_shape, strides, dilations).sum(axis=0)
    return combine.reduce(taps, axis=0), np.maximum(count, 1)


def _average_pool(x: np.ndarray, **attributes: Any) -> np.ndarray:
    sums, count = windows(x.astype(np.float64), np.add, 0, **attributes)
    return (sums / count).astype(_F)


# ----------------------------------------------------------------------------------------------------------
# Everything else.


def _in_double(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda x, **attributes: function(x.astype(np.float64), **attributes).astype(_F)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(x: np.ndarray, approximate: str = "none") -> np.ndarray:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + _erf(x * 0.70710678118654752440))


def _hard_swish(x: np.ndarray) -> np.ndarray:
    return x * np.clip(x + _F(3), _F(0), _F(6)) / _F(6)


def _clip(x: np.ndarray, lowest: Any = None, highest: Any = None, **old: float) -> np.ndarray:
    lowest = old.get("min") if lowest is None else lowest
    highest = old.get("max") if highest is None else highest
    x = x if lowest is None else np.maximum(x, np.asarray(lowest, x.dtype))
    return x if highest is None else np.minimum(x, np.asarray(highest, x.dtype))


def _matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    y = np.zeros([*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]], _F)
    for k in range(a.shape[-1]):
        y += a[..., :, k, None] * b[..., k, None, :]
    return y


def _gemm(a: np.ndarray, b: np.ndarray, c: Any = None, **attributes: Any) -> np.ndarray:
    a = a.T if attributes.get("transA") else a
    y = _matmul(a, b.T if attributes.get("transB") else b) * _F(attributes.get("alpha", 1))
    return y if c is None else y + c * _F(attributes.get("beta", 1))


def _softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    wide = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True))
    return (wide / np.take(np.cumsum(wide, axis=axis), [-1], axis=axis)).astype(_F)


def _layer_norm(
    x: np.ndarray, w: np.ndarray, b: Any = None, *, axis: int = -1, epsilon: float = 1e-5
) -> np.ndarray:
    count = math.prod(x.shape[axis:])
    wide = x.astype(np.float64).reshape([-1, count])
    center = wide - np.cumsum(wide, axis=1)[:, -1:] / count
    scale = 1 / np.sqrt(np.cumsum(center * center, axis=1)[:, -1:] / count + float(_F(epsilon)))
    y = center * scale * w.reshape(-1) + (0 if b is None else b.reshape(-1))
    return y.astype(_F).reshape(x.shape)


def _batch_norm(
    x: np.ndarray, w: Any, b: Any, mean: Any, variance: Any, *, epsilon: float = 1e-5, **_: Any
) -> np.ndarray:
    shape = [1, -1] + [1] * (x.ndim - 2)
    scale = (w / np.sqrt(variance.astype(np.float64) + float(_F(epsilon)))).astype(_F)
    return (x - mean.reshape(shape)) * scale.reshape(shape) + b.reshape(shape)


def _reduce(function: Callable[..., np.ndarray], *, wide: bool) -> Callable[..., np.ndarray]:
    def reduce(x: np.ndarray, axes: Any = None, keepdims: int = 1, **old: Any) -> np.ndarray:
        axes = old.get("axes") if axes is None else axes
        chosen = None if axes is None else tuple(int(axis) for axis in axes)
        values = x.astype(np.float64) if wide else x
        return function(values, axis=chosen, keepdims=bool(keepdims)).astype(_F)

    return reduce


def split(given: list[Any], attributes: dict[str, Any], outputs: int) -> list[np.ndarray]:
    x, axis = given[0], attributes.get("axis", 0)
    sizes = attributes.get("split", given[1] if len(given) > 1 else None)
    if sizes is None:
        each = -(-x.shape[axis] // outputs)
        sizes = [min(each, x.shape[axis] - each * i) for i in range(outputs)]
    return np.split(x, np.cumsum(sizes)[:-1], axis=axis)


def _reshape(x: np.ndarray, shape: np.ndarray, allowzero: int = 0) -> np.ndarray:
    kept = [x.shape[i] if size == 0 and not allowzero else int(size) for i, size in enumerate(shape)]
    return x.reshape(kept)


def _slice(x: np.ndarray, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> np.ndarray:
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    chosen = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        below = step < 0 and end < -x.shape[axis]
        chosen[axis] = slice(int(start), None if below else int(end), int(step))
    return x[tuple(chosen)]


def _squeeze(x: np.ndarray, axes: Any = None, **old: Any) -> np.ndarray:
    axes = old.get("axes") if axes is None else axes
    return np.squeeze(x, None if axes is None else tuple(int(axis) for axis in axes))


def _unsqueeze(x: np.ndarray, axes: Any = None, **old: Any) -> np.ndarray:
    axes = old.get("axes") if axes is None else axes
    return np.expand_dims(x, tuple(int(axis) for axis in axes))


def _pad(x: np.ndarray, pads: Any, value: Any = None, axes: Any = None, mode: str = "constant") -> np.ndarray:
    axes = range(x.ndim) if axes is None else axes
    widths = [(0, 0)] * x.ndim
    for number, axis in enumerate(axes):
        widths[axis] = (int(pads[number]), int(pads[len(pads) // 2 + number]))
    if mode == "constant":
        return np.pad(x, widths, constant_values=0 if value is None else value).astype(x.dtype)
    return np.pad(x, widths, mode="edge" if mode == "edge" else "reflect")


def _samples(
    mode: str, place: str, nearest: str, out: int, size: int, scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    at = np.arange(out)
    x: np.ndarray = np.zeros(out)
    if place == "asymmetric":
        x = at / scale
    elif place == "align_corners":
        x = at * (size - 1) / max(out - 1, 1)
    elif place != "pytorch_half_pixel" or out > 1:
        x = (at + 0.5) / scale - 0.5
    if mode == "nearest":
        rounded = {
            "floor": np.floor(x),
            "ceil": np.ceil(x),
            "round_prefer_ceil": np.floor(x + 0.5),
            "round_prefer_floor": np.ceil(x - 0.5),
        }[nearest]
        chosen = np.clip(rounded, 0, size - 1).astype(int)
        return chosen, chosen, np.zeros(out, _F)
    below = np.floor(x)
    first, second = (np.clip(below + more, 0, size - 1).astype(int) for more in (0, 1))
    return first, second, (x - below).astype(_F)


def _resize(
    x: np.ndarray,
    _: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    **__: Any,
) -> np.ndarray:
    for axis in (3, 2):
        size = x.shape[axis]
        out = math.floor(_F(size) * scales[axis]) if sizes is None else int(sizes[axis])
        scale = float(scales[axis]) if sizes is None else out / size
        first, second, weight = _samples(mode, coordinate_transformation_mode, nearest_mode, out, size, scale)
        weight = weight if axis == 3 else weight[:, None]
        x = np.take(x, first, axis) * (_F(1) - weight) + np.take(x, second, axis) * weight
    return x


def _same(x: np.ndarray, *_: Any, **__: Any) -> np.ndarray:
    return x


OPERATORS: dict[str, Callable[..., np.ndarray]] = {
    "Identity": _same,
    "Dropout": _same,
    "Relu": lambda x: np.maximum(x, _F(0)),
    "Clip": _clip,
    "LeakyRelu": lambda x, alpha=0.01: np.where(x < 0, x * _F(alpha), x),
    "HardSwish": _hard_swish,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(x * _F(alpha) + _F(beta), _F(0), _F(1)),
    "Elu": lambda x, alpha=1.0: np.where(x < 0, _F(alpha) * np.expm1(x.astype(np.float64)).astype(_F), x),
    "Sigmoid": _in_double(lambda x: 1 / (1 + np.exp(-x))),
    "Tanh": _in_double(np.tanh),
    "Erf": _in_double(_erf),
    "Exp": _in_double(np.exp),
    "Log": _in_double(np.log),
    "Softplus": _in_double(_softplus),
    "Mish": _in_double(lambda x: x * np.tanh(_softplus(x))),
    "Gelu": _in_double(_gelu),
    "Sqrt": np.sqrt,
    "Abs": np.abs,
    "Neg": np.negative,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Reciprocal": lambda x: _F(1) / x,
    "Softsign": lambda x: x / (_F(1) + np.abs(x)),
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": lambda a, b: a / b if a.dtype == _F else a // b,
    "Pow": lambda a, b: np.power(a.astype(np.float64), b.astype(np.float64)).astype(_F),
    "Max": lambda *x: np.maximum.reduce(np.broadcast_arrays(*x)),
    "Min": lambda *x: np.minimum.reduce(np.broadcast_arrays(*x)),
    "PRelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "Conv": conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "MaxPool": lambda x, **more: windows(x, np.maximum, -np.inf, **more)[0],
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda x: x.astype(np.float64).mean(axis=(2, 3), keepdims=True).astype(_F),
    "GlobalMaxPool": lambda x: x.max(axis=(2, 3), keepdims=True),
    "ReduceMean": _reduce(np.mean, wide=True),
    "ReduceSum": _reduce(np.sum, wide=True),
    "ReduceMax": _reduce(np.max, wide=False),
    "ReduceMin": _reduce(np.min, wide=False),
    "Softmax": _softmax,
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
    "Reshape": _reshape,
    "Flatten": lambda x, axis=1: x.reshape([math.prod(x.shape[:axis]), -1]),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": lambda x, perm=None: np.transpose(x, perm),
    "Concat": lambda *x, axis: np.concatenate(x, axis),
    "Slice": _slice,
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "Gather": lambda x, indices, axis=0: np.take(x, indices, axis),
    "Pad": _pad,
    "Resize": _resize,
    "Shape": lambda x: np.array(x.shape, np.int64),
    "Cast": lambda x, to: x.astype({1: np.float32, 6: np.int32, 7: np.int64}[to]),
}
