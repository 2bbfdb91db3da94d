"""Grids: the values that can be represented, and rounding to the nearest of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A set of representable values.

    `storage` is the Paddle type whose values the grid is made of; None stands for the tensor's own,
    so that nothing is rounded.
    """

    name: str
    storage: str | None

    def __str__(self) -> str:
        return self.name


FULL = Grid(name="full", storage=None)
BF16 = Grid(name="bf16", storage="bfloat16")
FP16 = Grid(name="fp16", storage="float16")

_GRIDS = {grid.name: grid for grid in (FULL, BF16, FP16)}
# Paddle's words for the same things.
_ALIASES = {"float32": FULL, "bfloat16": BF16, "float16": FP16}


def grid_names() -> list[str]:
    """The words for grids, sorted."""
    return sorted(_GRIDS)


def parse_grid(word: str) -> Grid:
    """The grid that a word stands for; an unknown word is an error with the nearest valid one.

    >>> parse_grid("bf16")
    Grid(name='bf16', storage='bfloat16')
    """
    grid = _GRIDS.get(word) or _ALIASES.get(word)
    if grid is None:
        raise LowbitError(f'unknown grid "{word}": {did_you_mean(word, _GRIDS)}')
    return grid


def round_to_grid(x: Tensor, grid: Grid) -> Tensor:
    """The values of `x` rounded to the nearest on the grid (half to even), held in the type of `x`.

    What lies beyond the largest finite value becomes Inf, and NaN stays NaN, as in hardware. The
    gradient goes straight through, rounded to the same grid: a pair of casts, which rounds the value,
    rounds what comes back along it too, and that is what training in that type does.

    >>> round_to_grid(paddle.to_tensor([1.001, 70000.0]), FP16).tolist()
    [1.0009765625, inf]
    """
    if grid.storage is None:
        return x
    if grid is FP16 and x.place.is_cpu_place():
        return _Float16OnCpu.apply(x)
    return x.cast(grid.storage).cast(x.dtype)


class _Float16OnCpu(PyLayer):
    """The pair of casts by NumPy.

    Paddle's CPU cast to float16 is wrong far below the grid: between 1.6e-27 and 6.7e-24 it gives up to
    6e-5 in the place of 0 (3.3.1). NumPy's is right, and no slower.
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
