"""Rounding to integers: to the nearest, or at random such that the mean is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import Tensor

from lowbit.errors import LowbitError, did_you_mean
from lowbit.numerics.counter_random import RANDOM_BITS, random_integers
from lowbit.numerics.exact import add, multiply, subtract

Rounding = Callable[[Tensor], Tensor]
_NAMES = ("nearest", "stochastic")


def rounding_names() -> list[str]:
    """The words for roundings, sorted."""
    return sorted(_NAMES)


def parse_rounding(word: str) -> str:
    """The word itself, when it is one for a rounding; otherwise an error with the nearest valid one.

    >>> parse_rounding("nearest")
    'nearest'
    """
    if not isinstance(word, str):
        raise LowbitError(f"rounding must be a word ({', '.join(_NAMES)}), not {word!r}")
    if word not in _NAMES:
        raise LowbitError(f'unknown rounding "{word}": {did_you_mean(word, _NAMES)}')
    return word


def nearest(x: Tensor) -> Tensor:
    """The nearest integers; halves go to the even one. A plain operator, so that it can be exported.

    >>> nearest(paddle.to_tensor([0.5, 1.5, -2.5])).tolist()
    [0.0, 2.0, -2.0]
    """
    return paddle.round(x)


@dataclass(frozen=True, kw_only=True)
class Stochastic:
    """One of the two integers around a value, the nearer the likelier: sign(x) * floor(|x| + u).

    `u` is k / 2^24 with the 24 bits `k` of lowbit.numerics.counter_random. The sum is not rounded: whether
    it reaches the next integer is decided by comparing the fraction of |x| with 1 - u, which are both exact.
    So the mean is off by less than 2^-24, and an integer stays what it is.

    `layer` is a number of its own for every tensor that is rounded in a step; `first` is the place of the
    tensor's first element, when the tensor is a part of a larger one.

    >>> rounding = Stochastic(seed=0, step=17, layer=3)
    >>> rounding(paddle.to_tensor([3.0, -2.0])).tolist()
    [3.0, -2.0]
    """

    seed: int
    step: int
    layer: int
    first: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise LowbitError(
                "stochastic rounding is for training: it cannot be part of an exported or static program"
            )
        magnitude = paddle.abs(x)
        whole = paddle.floor(magnitude)
        fraction = subtract(magnitude, whole)
        up = (fraction >= self._one_minus_u(x)).cast("float32")
        return multiply(paddle.sign(x), add(whole, up))

    def _one_minus_u(self, x: Tensor) -> Tensor:
        k = random_integers(x.size, seed=self.seed, step=self.step, layer=self.layer, first=self.first)
        k = np.subtract(np.uint32(1 << RANDOM_BITS), k).astype(np.float32).reshape(x.shape)
        k *= np.float32(2.0**-RANDOM_BITS)
        return paddle.to_tensor(k, place=x.place)
