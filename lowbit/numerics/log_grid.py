"""Rounding to 0 and powers of two: the grid of LUQ, for gradients, which span many magnitudes.

With b bits there are 2^(b-1) - 1 powers and their negatives: 1, 2, 4 with three, 1 to 64 with four. The scale
is max |x| divided by the largest, so nothing is clipped, and with stochastic rounding the mean is kept: below
1 as well, where a value becomes 0 or 1.
"""

from __future__ import annotations

import paddle
from paddle import Tensor

from lowbit.numerics.exact import add, divide, multiply, subtract
from lowbit.numerics.rounding import Rounding, nearest

_HIGHEST = 64  # what a signed byte holds


def log_round(v: Tensor, rounding: Rounding = nearest) -> Tensor:
    """0 or a power of two, whichever of the two around |v| the rounding takes, with the sign of `v`.

    `v` is already divided by the scale and clipped: at most 64. The way from the one below to the one above
    counts as 1 and is rounded: `nearest` takes the nearer one, and from halfway the lower. Each operation is
    exact, so a kernel gives the same bits.

    >>> log_round(paddle.to_tensor([0.5, 0.7, -1.5, 3.1, -64.0])).tolist()
    [0.0, 1.0, -1.0, 4.0, -64.0]
    """
    size = paddle.abs(v)
    below = paddle.zeros_like(size)
    power = 1
    while power <= _HIGHEST:
        below = paddle.where(size >= power, paddle.full_like(size, power), below)
        power *= 2
    step = paddle.clip(below, min=1.0)
    up = rounding(divide(subtract(size, below), step))
    return multiply(paddle.sign(v), add(below, multiply(up, step)))
