"""A product of two operands: of integers, where their scales come out of the sum, or of values."""

from __future__ import annotations

from typing import Literal

from paddle import Tensor

from lowbit.layers.contraction import Contraction
from lowbit.layers.operand import Operand
from lowbit.numerics.exact import multiply

ProductName = Literal["forward", "grad_input", "grad_weight"]


def simulate(contraction: Contraction, product: ProductName, a: Operand, b: Operand) -> Tensor:
    """The product on Paddle's own operators: integers held in fp32, exact as long as sums stay below 2^24.

    The order of operands is X and W, dY and W, dY and X.
    """
    compute = getattr(contraction, product)
    if a.is_integer and b.is_integer:
        scale = getattr(contraction, f"{product}_scale")(a.scale, b.scale)
        if scale is not None:
            return multiply(compute(a.integers(), b.integers()), scale)
    return compute(a.values(), b.values())
