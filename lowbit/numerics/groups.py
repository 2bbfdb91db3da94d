"""A group is the values that share a scale: reductions over groups, and groups as the rows of a matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import Tensor

from lowbit.errors import LowbitError


def shape_of_scales(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The shape of the scales of a tensor whose groups lie along `axes`."""
    return [1 if axis in axes else size for axis, size in enumerate(shape)]


def largest_magnitude(x: Tensor, axes: Sequence[int]) -> Tensor:
    """max |x| of every group; NaN where a value is NaN.

    >>> largest_magnitude(paddle.to_tensor([[1.0, -3.0]]), axes=(1,)).tolist()
    [[3.0]]
    """
    # Paddle takes an empty list of axes for all of them.
    return paddle.max(paddle.abs(x), axis=list(axes), keepdim=True) if axes else paddle.abs(x)


def sum_groups(x: Tensor, axes: Sequence[int], dtype: str) -> Tensor:
    """The sum of every group, added up in `dtype`."""
    return paddle.sum(x, axis=list(axes), keepdim=True, dtype=dtype) if axes else x.cast(dtype)


@paddle.jit.not_to_static
def sum_to_shape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The sums over what a tensor of `shape` was broadcast along to meet `x`: its gradient.

    >>> sum_to_shape(paddle.ones([2, 3, 4]), [3, 1]).tolist()
    [[8.0], [8.0], [8.0]]
    """
    extra = len(x.shape) - len(shape)
    own = [1] * extra + list(shape)
    axes = [axis for axis, size in enumerate(own) if size == 1]
    return sum_groups(x, axes, "float32").reshape(list(shape))


def require_values(x: Tensor, observer: str) -> None:
    """An error in a static program, where values are not known yet, for an observer that looks at them."""
    if not isinstance(x, Tensor):
        raise LowbitError(
            f"the observer {observer} is for calibration: it cannot be part of an exported or static "
            "program; use fixed scaling, or the observer minmax or mse"
        )


def groups_as_rows(x: Tensor, axes: Sequence[int], observer: str) -> tuple[np.ndarray, list[int]]:
    """Magnitudes in NumPy, a row for every group in the order of the scales; and the scales' shape."""
    require_values(x, observer)
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    values = np.abs(x.numpy()).transpose([*kept, *axes])
    shape = shape_of_scales(x.shape, axes)
    return values.reshape(int(np.prod(shape)), -1), shape
