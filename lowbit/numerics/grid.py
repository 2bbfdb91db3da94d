"""Grids: the values that can be represented, and rounding to the nearest of a narrow float type's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError, nearest


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A set of representable values.

    `storage` is the Paddle type that holds them; None means the tensor's own, so that nothing is
    rounded. An integer grid has `bits`, and a value of it is an integer times a scale:

    >>> grid = parse_grid("int4")
    >>> grid.lowest, grid.highest
    (-8, 7)

    A mid-rise grid has no 0: its integers are the odd ones, 2^bits of them, as many below 0 as above. With
    few bits it is closer to weights than a grid that spends one of four values on 0 and another on one side.

    >>> grid = parse_grid("int2-midrise")  # -3, -1, 1, 3
    >>> grid.lowest, grid.highest
    (-3, 3)
    """

    name: str
    storage: str | None
    bits: int | None = None
    signed: bool = True
    narrow: bool = False
    logarithmic: bool = False
    midrise: bool = False
    zero_point: int = 0  # integers below 0, where that is neither none nor half of them

    def __str__(self) -> str:
        return self.name

    @property
    def is_integer(self) -> bool:
        """Whether values are integers times a scale."""
        return self.bits is not None

    @property
    def has_every_integer(self) -> bool:
        """Whether every integer from the lowest to the highest is on it, as kernels that round take it."""
        return not self.logarithmic and not self.midrise

    @property
    def spacing(self) -> int:
        """The distance of adjacent integers, where it is the same everywhere."""
        return 2 if self.midrise else 1

    @property
    def storage_bits(self) -> int:
        """Bits of the two's complement that holds the integers: one more where they are odd ones only."""
        return self._integer_bits() + self.midrise

    @cached_property
    def lowest(self) -> int:
        """The smallest integer: 0, or -2^(b-1), or as far from 0 as the highest."""
        if not self.signed or self.zero_point:
            return -self.zero_point
        symmetric = self.narrow or self.logarithmic or self.midrise
        return -self.highest if symmetric else -(1 << (self._integer_bits() - 1))

    @cached_property
    def highest(self) -> int:
        """The largest integer: 2^(b-1)-1; unsigned or mid-rise 2^b-1; logarithmic the last power of two."""
        if self.logarithmic:  # 0 and 2^(b-1)-1 powers of two on either side
            return 1 << ((1 << (self._integer_bits() - 1)) - 2)
        if self.zero_point:
            return (1 << self._integer_bits()) - 1 - self.zero_point
        return (1 << (self._integer_bits() - (self.signed and not self.midrise))) - 1

    def in_bits(self, bits: int) -> Grid:
        """The same kind of grid with other bits.

        >>> str(parse_grid("int4-narrow").in_bits(8))
        'int8-narrow'
        """
        midrise = self.midrise and bits <= MOST_MIDRISE_BITS
        return _integer_grid(bits, signed=self.signed, narrow=self.narrow, midrise=midrise)

    def _integer_bits(self) -> int:
        if self.bits is None:
            raise LowbitError(f"{self.name} is not an integer grid: use one of {_INTEGER_WORDS}")
        return self.bits


FEWEST_BITS, MOST_BITS, MOST_LOG_BITS, MOST_MIDRISE_BITS = 2, 8, 4, 4
_INTEGER_WORDS = (
    "int2 to int8, uint2 to uint8, int2-narrow to int8-narrow, for weights int2-midrise to int4-midrise, "
    "for gradients log2 to log4"
)


def _integer_grid(bits: int, *, signed: bool = True, narrow: bool = False, midrise: bool = False) -> Grid:
    form = "-narrow" if narrow else "-midrise" if midrise else ""
    return Grid(
        name=f"{'' if signed else 'u'}int{bits}{form}",
        storage="int8" if signed else "uint8",
        bits=bits,
        signed=signed,
        narrow=narrow,
        midrise=midrise,
    )


FULL = Grid(name="full", storage=None)
BF16 = Grid(name="bf16", storage="bfloat16")
FP16 = Grid(name="fp16", storage="float16")

_BITS = range(FEWEST_BITS, MOST_BITS + 1)
_GRIDS = {
    grid.name: grid
    for grid in (
        *(FULL, BF16, FP16),
        *(_integer_grid(bits) for bits in _BITS),
        *(_integer_grid(bits, signed=False) for bits in _BITS),
        *(_integer_grid(bits, narrow=True) for bits in _BITS),
        *(_integer_grid(bits, midrise=True) for bits in _BITS if bits <= MOST_MIDRISE_BITS),
        *(
            Grid(name=f"log{bits}", storage="int8", bits=bits, logarithmic=True)
            for bits in range(FEWEST_BITS, MOST_LOG_BITS + 1)
        ),
    )
}
# Paddle's words for the same things.
_ALIASES = {"float32": FULL, "bfloat16": BF16, "float16": FP16}


def grid_names() -> list[str]:
    """The words for grids, sorted."""
    return sorted(_GRIDS)


def parse_grid(word: str) -> Grid:
    """Parse a grid; an unknown word is an error with the nearest valid one.

    >>> parse_grid("uint4").highest
    15
    """
    if not isinstance(word, str):
        raise LowbitError(f'a grid is a word such as "int8" or "bf16", not {word!r}')
    grid = _GRIDS.get(word) or _ALIASES.get(word)
    if grid is None:
        raise LowbitError(f'unknown grid "{word}": {_what_instead(word)}')
    return grid


def _what_instead(word: str) -> str:
    number = re.fullmatch(r"u?int(\d+)(-narrow)?", word.strip().lower())
    if number and int(number[1]) not in _BITS:
        return f"integer grids have {FEWEST_BITS} to {MOST_BITS} bits ({_INTEGER_WORDS})"
    if number and number[2] and word.lower().startswith("u"):
        return f"only signed grids have a narrow form; valid: {_INTEGER_WORDS}"
    guess = nearest(word, _GRIDS)
    return f'did you mean "{guess}"?' if guess else f"valid: full, bf16, fp16, {_INTEGER_WORDS}"


def round_to_grid(x: Tensor, grid: Grid) -> Tensor:
    """The values of `x` rounded to the nearest on the grid (half to even), held in the type of `x`.

    Values beyond the largest finite value become Inf, and NaN stays NaN, as in hardware. The
    gradient goes straight through, rounded to the same grid: a pair of casts, which rounds the value,
    rounds what comes back along it too, and that is what training in that type does.

    >>> round_to_grid(paddle.to_tensor([1.001, 70000.0]), FP16).tolist()
    [1.0009765625, inf]
    """
    if grid.storage is None:
        return x
    if grid.is_integer:
        raise LowbitError(f"rounding to {grid} needs a scale: use fake_quantize")
    if grid == FP16 and x.place.is_cpu_place():
        return _Float16OnCpu.apply(x)
    return x.cast(grid.storage).cast(x.dtype)


class _Float16OnCpu(PyLayer):
    """The pair of casts by NumPy.

    Paddle's CPU cast to float16 is wrong far below the grid: between 1.6e-27 and 6.7e-24 it gives up to
    6e-5 instead of 0 (3.3.1). NumPy's is right, and no slower.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _through_float16(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return _through_float16(dy)


def _through_float16(x: Tensor) -> Tensor:
    values = np.from_dlpack(x.detach())
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16, order="C").astype(values.dtype)
    # A copy into Paddle's memory, not from_dlpack: NumPy's is aligned to 16 bytes only, and the matrix
    # library sums in another order at another alignment, so last bits would differ from run to run.
    return paddle.to_tensor(rounded)
