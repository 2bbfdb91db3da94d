"""A product of two operands, by either executor: real integers, or their simulation on Paddle's operators."""

from __future__ import annotations

from typing import Literal

from paddle import Tensor

from lowbit.layers.contraction import Contraction
from lowbit.layers.integer_products import in_integers
from lowbit.layers.operand import Operand
from lowbit.numerics.exact import multiply

ProductName = Literal["forward", "grad_input", "grad_weight"]
Executor = Literal["auto", "integer", "simulate"]


def multiply_operands(
    contraction: Contraction, product: ProductName, a: Operand, b: Operand, executor: Executor
) -> Tensor:
    """X and W, dY and W, or dY and X multiplied; in integers unless `simulate` is asked for or must do."""
    if executor != "simulate":
        result = in_integers(contraction, product, a, b)
        if result is not None:
            return result
    return simulate(contraction, product, a, b)


def simulate(contraction: Contraction, product: ProductName, a: Operand, b: Operand) -> Tensor:
    """The product on Paddle's own operators: integers held in fp32, exact as long as sums stay below 2^24.

    Where scales do not come out of the sum, or an operand is no integer, it is a product of values.
    """
    compute = getattr(contraction, product)
    if a.is_integer and b.is_integer:
        scale = getattr(contraction, f"{product}_scale")(a.scale, b.scale)
        if scale is not None:
            return multiply(compute(a.integers(), b.integers()), scale)
    return compute(a.values(), b.values())
