"""The four operations in fp32 with one rounding each, whatever mixed precision is on around them.

Quantized values are defined by these: the integer kernels and NumPy give the same bits. Three things would
spoil them. Emulated mixed precision (level O2) replaces the operators of Paddle's tensors with rounding ones
while it is on; the functions here were taken before. Paddle divides two tensors of equal shape with
a vector library that is off by one bit for one quotient in 300. And in a served program with oneDNN, a
division writes over its first operand, though others still need it (Paddle 3.3).
"""

from __future__ import annotations

import paddle
from paddle import Tensor

_ADD, _SUBTRACT = Tensor.__add__, Tensor.__sub__
_MULTIPLY, _DIVIDE = Tensor.__mul__, Tensor.__truediv__


def as_float32(x: Tensor) -> Tensor:
    """`x` in fp32; itself when it is, since Paddle would copy it."""
    return x if is_float32(x) else x.cast("float32")


def is_float32(x: Tensor) -> bool:
    """Whether `x` is in fp32."""
    dtype = x.dtype
    return dtype is paddle.float32 or dtype == paddle.float32  # Paddle's == takes microseconds


def as_type_of(x: Tensor, y: Tensor) -> Tensor:
    """`y` in the type of `x`."""
    return y if y.dtype == x.dtype else y.cast(x.dtype)


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, rounded once."""
    return _ADD(x, y) if isinstance(x, Tensor) else x + y  # a static program's value is not a Tensor


def subtract(x: Tensor, y: Tensor) -> Tensor:
    """x - y, rounded once."""
    return _SUBTRACT(x, y) if isinstance(x, Tensor) else x - y


def multiply(x: Tensor, y: Tensor | float) -> Tensor:
    """x * y, rounded once; a number `y` is one of fp32."""
    return _MULTIPLY(x, y) if isinstance(x, Tensor) else x * y


def negate(x: Tensor) -> Tensor:
    """-x."""
    return multiply(x, paddle.full([], -1.0, x.dtype))


def divide(x: Tensor, y: Tensor) -> Tensor:
    """x / y, rounded once; `y` has the shape of `x` or is broadcast to it.

    >>> divide(paddle.to_tensor([1.0, 2.0]), paddle.to_tensor([3.0])).tolist()
    [0.3333333432674408, 0.6666666865348816]
    """
    if not isinstance(x, Tensor) or x.shape == y.shape:
        # With one axis more, the shapes differ and x is copied: both dangers are gone.
        return _divide(x.unsqueeze(0), y).squeeze(0)
    return _divide(x, y)


def _divide(x: Tensor, y: Tensor) -> Tensor:
    return _DIVIDE(x, y) if isinstance(x, Tensor) else x / y
