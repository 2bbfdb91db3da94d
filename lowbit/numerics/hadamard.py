"""Rotation: a Hadamard transform of blocks of channels, which spreads outliers over all of them.

Quantized in between, an outlier no longer makes the step of a whole group large (Xi et al. 2023, Training
Transformers with 4-bit Integers). The transform is its own inverse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import paddle
from paddle import Tensor

from lowbit.errors import LowbitError
from lowbit.numerics import fused_groups
from lowbit.numerics.exact import add, multiply, subtract
from lowbit.numerics.spec_parser import Kind, join_word, name_and_number

_DEFAULT = 16
_BLOCKS = [2**power for power in range(1, 7)]
_KINDS = {
    "none": Kind(),
    "hadamard": Kind(None, _DEFAULT, f"a power of two from 2 to {_BLOCKS[-1]}", lambda n: n in _BLOCKS),
}


@dataclass(frozen=True)
class Rotation:
    """`none`, or `hadamard` of blocks of that many channels.

    >>> str(parse_rotation("hadamard(32)"))
    'hadamard(32)'
    """

    name: str = "none"
    parameter: float | None = None

    def __str__(self) -> str:
        return join_word(self.name, self.parameter, _KINDS[self.name].default)

    def __bool__(self) -> bool:
        return self.name != "none"

    def __call__(self, x: Tensor, axis: int) -> Tensor:
        """`x` turned along `axis`, in blocks of the size given or of the largest that divides the axis."""
        return hadamard_transform(x, axis, math.gcd(int(self.parameter), x.shape[axis])) if self else x


def parse_rotation(word: str) -> Rotation:
    """Parse a rotation: none, hadamard, hadamard(32).

    >>> bool(parse_rotation("none"))
    False
    """
    return Rotation(*name_and_number("rotation", word, _KINDS))


def hadamard_transform(x: Tensor, axis: int, block: int) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of consecutive blocks along an axis.

    >>> hadamard_transform(paddle.to_tensor([1.0, 1.0, 4.0, 0.0]), 0, 4).tolist()
    [3.0, 2.0, -1.0, -2.0]
    """
    size = x.shape[axis]
    if block & (block - 1) or size % block:
        raise LowbitError(f"an axis of {size} cannot be turned in blocks of {block}")
    turned = fused_groups.hadamard(x, axis, block) if block <= _BLOCKS[-1] else None
    return butterflies(x, axis, block) if turned is None else turned


def butterflies(x: Tensor, axis: int, block: int) -> Tensor:
    """The same, one stage of sums and differences after the other: the kernel's twin."""
    size = x.shape[axis]
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    turned, half = x, 1
    while half < block:
        pairs = turned.reshape([before * size // (2 * half), 2, half * after])
        first, second = pairs[:, 0], pairs[:, 1]
        turned = paddle.stack([add(first, second), subtract(first, second)], axis=1)
        half *= 2
    return multiply(turned.reshape(x.shape), paddle.full([], 1 / math.sqrt(block), "float32"))
