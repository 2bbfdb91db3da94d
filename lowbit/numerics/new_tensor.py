"""Tensors to be written by a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import paddle
from paddle import Tensor

from lowbit.kernels.large_pages import advise_large_pages


def new_tensor(shape: Sequence[int], dtype: str | paddle.dtype = "float32") -> Tensor:
    """A tensor whose values are yet to be written, all of them; a large one in large pages.

    >>> list(new_tensor([2, 3]).shape)
    [2, 3]
    """
    tensor = paddle.empty(shape, dtype)
    if tensor.place.is_cpu_place():
        advise_large_pages(tensor.data_ptr(), math.prod(shape) * tensor.element_size())
    return tensor
