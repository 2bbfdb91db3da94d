"""Tensors to be written by a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import paddle
from paddle import Tensor, _C_ops

from lowbit.kernels.large_pages import advise_large_pages

_CPU = paddle.CPUPlace()


def new_tensor(shape: Sequence[int], dtype: str = "float32") -> Tensor:
    """A tensor on the CPU whose values are yet to be written, all of them; a large one in large pages.

    >>> list(new_tensor([2, 3]).shape)
    [2, 3]
    """
    # The operator behind paddle.empty, whose checks take five times as long, hundreds of times in a step.
    tensor = _C_ops.empty(shape, getattr(paddle, dtype), _CPU)
    advise_large_pages(tensor.data_ptr(), math.prod(shape) * tensor.element_size())
    return tensor
