"""`fold` for batches of any size: Paddle refuses to make a program of it unless the batch's size is fixed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn import functional as F

_lock = threading.Lock()
_local = threading.local()
_users = 0
_original: Callable[..., Tensor] = F.fold


@contextmanager
def open_batch() -> Iterator[None]:
    """Within it, and in this thread, `paddle.nn.functional.fold` can be traced with an open batch size.

    It becomes a transposed convolution; what is computed at once, outside of a program, stays Paddle's.

    with open_batch():
        paddle.jit.save(model, "model", input_spec=[InputSpec([None, 3, 64, 64])])
    """
    global _users, _original
    with _lock:
        _users += 1
        if _users == 1:
            _original = F.fold
            F.fold = _replacement(_original)
    _local.depth = getattr(_local, "depth", 0) + 1
    try:
        yield
    finally:
        _local.depth -= 1
        with _lock:
            _users -= 1
            if not _users:
                F.fold = _original


def _replacement(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @paddle.jit.not_to_static
    @functools.wraps(original)
    def fold(x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        if getattr(_local, "depth", 0) and not paddle.in_dynamic_mode():
            return fold_as_convolution(x, *arguments, **named)
        return original(x, *arguments, **named)

    return fold


def fold_as_convolution(
    x: Tensor,
    output_sizes: int | Sequence[int],
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = 1,
    paddings: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    name: str | None = None,
) -> Tensor:
    """`fold` by a transposed convolution, whose kernels put one number each to its place.

    >>> columns = F.unfold(paddle.ones([1, 2, 4, 4]), 2, strides=2)
    >>> float(fold_as_convolution(columns, 4, 2, strides=2).mean())
    1.0
    """
    sizes, kernel, steps, dilation = map(_pair, (output_sizes, kernel_sizes, strides, dilations))
    pads = _pair(paddings)
    top, left, bottom, right = pads if len(pads) == 4 else (*pads, *pads)
    padded = [sizes[0] + top + bottom, sizes[1] + left + right]
    spans = [gap * (side - 1) + 1 for gap, side in zip(dilation, kernel, strict=True)]
    counts = [(size - span) // step + 1 for size, span, step in zip(padded, spans, steps, strict=True)]
    uncovered = [(size - span) % step for size, span, step in zip(padded, spans, steps, strict=True)]
    numbers = kernel[0] * kernel[1]
    picks = paddle.to_tensor(np.eye(numbers, dtype=np.float32).reshape([numbers, 1, *kernel]))
    # Channels become part of the batch: Paddle may have lost their number.
    patches = x.reshape([-1, numbers, *counts])
    images = F.conv2d_transpose(
        patches, picks, stride=steps, padding=[top, bottom, left, right], output_padding=uncovered,
        dilation=dilation,
    )  # fmt: skip
    channels = -1 if x.shape[1] == -1 else x.shape[1] // numbers
    batch = paddle.shape(x)[0] if channels == -1 else -1
    return images.reshape([batch, channels, *sizes])


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
