"""One operand of a product, as it is multiplied and as it is kept for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from paddle import Tensor

from lowbit.numerics.exact import multiply


@dataclass(frozen=True, kw_only=True)
class Operand:
    """Small integers (int8, uint8) with their scale; or, with no scale, plain values.

    `lowest` and `highest` are bounds that the integers keep, `scale` is broadcast against them.

    >>> Operand(data=paddle.to_tensor([2, -3], "int8"), scale=paddle.to_tensor([0.5])).values().tolist()
    [1.0, -1.5]
    """

    data: Tensor
    scale: Tensor | None = None
    lowest: int = 0
    highest: int = 0

    @property
    def is_integer(self) -> bool:
        """Whether it is integers times a scale."""
        return self.scale is not None

    def integers(self) -> Tensor:
        """The integers, held in fp32."""
        return self.data.cast("float32")

    def values(self) -> Tensor:
        """What it stands for, in fp32."""
        return multiply(self.integers(), self.scale) if self.is_integer else self.data


def smallest_type(lowest: int, highest: int) -> str:
    """The type that holds integers of these bounds: one byte each, but for sums of two 8-bit ones.

    >>> smallest_type(0, 255)
    'uint8'
    """
    if lowest >= 0 and highest <= 255:
        return "uint8"
    return "int8" if lowest >= -128 and highest <= 127 else "int16"
