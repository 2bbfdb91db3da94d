"""Clipping at a bound, as PACT does it, without a gradient."""

from __future__ import annotations

import paddle
from paddle import Tensor

from lowbit.numerics.exact import as_float32, as_type_of, negate
from lowbit.numerics.scale import at_least_smallest


def clip_to_bound(x: Tensor, alpha: Tensor, *, signed: bool) -> Tensor:
    """`x` within [-alpha, alpha], or, unsigned, within [0, alpha]; `alpha` is broadcast. NaN stays NaN.

    >>> clip_to_bound(paddle.to_tensor([-5.0, 1.0, 3.0]), paddle.to_tensor([2.0]), signed=True).tolist()
    [-2.0, 1.0, 2.0]
    """
    bound = usable_bound(alpha)
    clipped = paddle.minimum(paddle.maximum(as_float32(x), lower_bound(bound, signed=signed)), bound)
    return as_type_of(x, clipped)


def usable_bound(alpha: Tensor) -> Tensor:
    """The bound in fp32 and not below the smallest normal float, wherever learning has taken it."""
    return at_least_smallest(as_float32(alpha))


def lower_bound(bound: Tensor, *, signed: bool) -> Tensor:
    """The other end: -bound, or, unsigned, 0."""
    return negate(bound) if signed else paddle.zeros_like(bound)
