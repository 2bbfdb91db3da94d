"""Batch norm, ReLU and max-pool on a CPU by lowbit's own kernels instead of Paddle's, in training."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import paddle
from paddle import Tensor, _C_ops

from lowbit.kernels import kernels
from lowbit.kernels.neighbours import Pool
from lowbit.layers.neighbours import MaxPool, Relu
from lowbit.layers.norm_readers import noted_reader
from lowbit.layers.product_scale import noted_scale
from lowbit.layers.trained_norm import BatchNorm, Statistics
from lowbit.layers.waiting_norm import WaitingNorm
from lowbit.numerics.new_tensor import new_tensor


@contextmanager
def fast_neighbours(*, wanted: bool = True) -> Iterator[None]:
    """Inside the `with`, if `wanted`, what stands between convolutions trains in lowbit's kernels.

    That is batch norm with the batch's statistics, ReLU, and max-pools of 2 or 3 with a stride of 1 or 2, on
    fp32 tensors in NCHW on the CPU, whoever calls them. Less time and much less memory; the same results but
    for the order of sums (ReLU, and the max-pool without NaN and Inf: the same bits). A batch norm whose
    reader is noted (`note_readers`) waits for it, and is computed in one pass with the residual sum and the
    ReLU that follow, to the same bits. Everything else goes the usual way: evaluation, what no gradient is
    wanted of, other types, layouts and devices, programs being exported; and all of it where the kernels are
    missing (lowbit.kernels.why_missing says why).

    with fast_neighbours():
        loss = criterion(model(images), labels)
        loss.backward()
    """
    if not wanted or kernels() is None:
        yield
        return
    wrappers = {"batch_norm": _batch_norm, "relu": _relu, "pool2d": _pool2d}
    readers = {"relu": _rectified, "relu_": _rectified, "add": _sum, "add_": _sum}
    originals = {name: getattr(_C_ops, name) for name in wrappers | readers}
    for name, wrapper in wrappers.items():
        setattr(_C_ops, name, _or_original(wrapper, originals[name]))
    for name, reader in readers.items():
        setattr(_C_ops, name, _or_waiting(reader, getattr(_C_ops, name)))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(_C_ops, name, original)


def neighbour_library(*, wanted: bool) -> str:
    """What computes batch norm, ReLU and max-pool on a CPU, for the record of what shapes last bits.

    >>> neighbour_library(wanted=False)
    'Paddle'
    """
    return "lowbit" if wanted and kernels() is not None else "Paddle"


def _or_original(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def operator(*arguments: Any, **named: Any) -> Any:
        result = None if named or not _is_trained(arguments[0]) else wrapper(*arguments)
        return original(*arguments, **named) if result is None else result

    return operator


def _or_waiting(reader: Callable[..., Any], operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator, or `reader` where a batch norm waits to be read."""

    @functools.wraps(operator)
    def reading(*arguments: Any, **named: Any) -> Any:
        if not any(isinstance(argument, WaitingNorm) for argument in arguments):
            return operator(*arguments, **named)
        if all(value is None for value in named.values()):  # paddle.add has an `out`
            return reader(*arguments)
        return operator(*(a.tensor() if isinstance(a, WaitingNorm) else a for a in arguments), **named)

    return reading


def _rectified(x: WaitingNorm) -> Tensor:
    return x.rectified()


def _sum(x: Tensor | WaitingNorm, y: Tensor | WaitingNorm) -> Tensor | WaitingNorm:
    return x + y


def _is_trained(x: Any) -> bool:
    return (
        isinstance(x, Tensor)  # not a value of a static program
        and paddle.is_grad_enabled()
        and _is_plain(x)
        and 0 not in x.shape
    )


def _is_plain(x: Tensor) -> bool:
    return x.dtype == paddle.float32 and x.place.is_cpu_place()


def _relu(x: Tensor) -> Tensor | None:
    return None if x.stop_gradient else Relu.apply(x)


def _batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    is_test: bool,
    momentum: float,
    epsilon: float,
    data_format: str,
    use_global_stats: bool,
    trainable_statistics: bool,
) -> tuple[Tensor, ...] | None:
    """As Paddle's operator: y, both running statistics, those of the batch, and room that only GPUs use."""
    learning = tuple(tensor is not None and not tensor.stop_gradient for tensor in (x, weight, bias))
    if is_test or use_global_stats or data_format != "NCHW" or x.ndim != 4 or not any(learning):
        return None
    channels = x.shape[1]
    if math.prod(x.shape) == channels:  # one value each, which Paddle lets through as it is
        return None
    of_channels = [tensor for tensor in (running_mean, running_variance, weight, bias) if tensor is not None]
    if not all(_is_plain(t) and t.shape == [channels] and t.is_contiguous() for t in of_channels):
        return None
    mean, inverse = new_tensor([channels]), new_tensor([channels])
    statistics = Statistics(running_mean, running_variance, mean, inverse, epsilon, momentum, noted_scale(x))
    reader = noted_reader(weight)
    if reader is None:
        y = BatchNorm.apply(x, weight, bias, None, statistics, False)
    else:
        y = WaitingNorm(x, weight, bias, statistics, reader)
    return y, running_mean, running_variance, mean, inverse, new_tensor([0], "uint8")


def _pool2d(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    exclusive: bool,
    data_format: str,
    kind: str,
    whole: bool,
    adaptive: bool,
    algorithm: str,
) -> Tensor | None:
    if x.stop_gradient or x.ndim != 4 or (kind, data_format, algorithm) != ("max", "NCHW", "EXPLICIT"):
        return None
    if whole or adaptive or not isinstance(kernel, (list, tuple)):
        return None
    if not ({*kernel} <= {2, 3} and {*stride} <= {1, 2}):
        return None
    top, bottom, left, right = (
        padding if len(padding) == 4 else (padding[0], padding[0], padding[1], padding[1])
    )
    height, width = x.shape[2:]
    out_height = _windows(height, kernel[0], stride[0], top, bottom, ceil_mode=ceil_mode)
    out_width = _windows(width, kernel[1], stride[1], left, right, ceil_mode=ceil_mode)
    if out_height is None or out_width is None:
        return None
    planes = x.shape[0] * x.shape[1]
    pool = Pool(planes, height, width, out_height, out_width, *kernel, *stride, top, left)
    return MaxPool.apply(x, pool)


def _windows(size: int, kernel: int, stride: int, before: int, after: int, *, ceil_mode: bool) -> int | None:
    """How many windows there are along an axis; None unless each holds a pixel."""
    rest = size + before + after - kernel
    count = (rest + (stride - 1 if ceil_mode else 0)) // stride + 1
    fits = rest >= 0 and min(before, after) >= 0 and before < kernel and (count - 1) * stride - before < size
    return count if fits else None
