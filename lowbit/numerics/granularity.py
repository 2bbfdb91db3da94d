"""Granularity: which axes of a tensor own a scale, and reductions over the groups that share one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import paddle
from paddle import Tensor

from lowbit.errors import LowbitError, nearest

LETTERS = "NCHW"
_PER_TENSOR = "per-tensor"


@dataclass(frozen=True)
class Granularity:
    """The letters of the axes along which scales differ; no letters mean one scale per tensor.

    Which axis a letter means is said by a layout, one letter per axis:

    | tensor | layout |
    |---|---|
    | activation or its gradient | NCHW; of a Linear NC, NHC for [batch, tokens, features], NHWC, NHHWC, … |
    | weight of Conv2D [out, in, kh, kw] | NCHW: N is the output channel, C the input channel |
    | weight of Conv2DTranspose [in, out, kh, kw] | CNHW |
    | weight of Linear [in, out] | CN |

    A letter that the layout lacks counts as an axis of size one, so that a recipe for convolutions has a
    meaning for Linear layers too: NHW on NC is per sample.
    """

    letters: str = ""

    def __post_init__(self) -> None:
        if self.letters != "".join(letter for letter in LETTERS if letter in self.letters):
            raise ValueError(f'"{self.letters}" is not in the order of {LETTERS}: use parse_granularity')

    def __str__(self) -> str:
        return self.letters or _PER_TENSOR

    def scale_shape(self, shape: Sequence[int], layout: str) -> tuple[int, ...]:
        """The shape of the scales of a tensor: its own along the letters' axes, 1 along the others.

        >>> parse_granularity("NC").scale_shape([16, 64, 7, 7], "NCHW")
        (16, 64, 1, 1)
        """
        if len(shape) != len(layout):
            raise ValueError(f'a tensor of shape {list(shape)} does not have the layout "{layout}"')
        return tuple(shape_of_scales(shape, self.reduced_axes(layout)))

    def reduced_axes(self, layout: str) -> tuple[int, ...]:
        """The axes that an observer looks across, because they share a scale.

        >>> parse_granularity("N").reduced_axes("CN")
        (0,)
        """
        return _axes_without(self.letters, layout)


def parse_granularity(word: str) -> Granularity:
    """Parse a granularity: `per-tensor`, or letters of NCHW in any order.

    >>> str(parse_granularity("WNH"))
    'NHW'
    """
    if word == _PER_TENSOR:
        return Granularity()
    if not isinstance(word, str) or not word or not set(word) <= set(LETTERS):
        raise LowbitError(f"unknown granularity {_quoted(word)}: {_what_instead(word)}")
    if len(set(word)) != len(word):
        raise LowbitError(
            f'granularity "{word}" names an axis twice: did you mean "{_in_order(word)}"?',
        )
    return Granularity(_in_order(word))


def _in_order(word: str) -> str:
    return "".join(letter for letter in LETTERS if letter in word)


def _quoted(word: object) -> str:
    return f'"{word}"' if isinstance(word, str) else repr(word)


def _what_instead(word: object) -> str:
    valid = f"it is {_PER_TENSOR}, or letters of {LETTERS} (the axes that own a scale) such as N or NHW"
    if not isinstance(word, str):
        return valid
    if word and set(word.upper()) <= set(LETTERS):
        return f'did you mean "{_in_order(word.upper())}"?'
    return f'did you mean "{_PER_TENSOR}"?' if nearest(word, [_PER_TENSOR]) else valid


@cache
def _axes_without(letters: str, layout: str) -> tuple[int, ...]:
    once = re.sub("H+", "H", layout)
    if not set(once) <= set(LETTERS) or len(set(once)) != len(once):
        raise ValueError(f'layout "{layout}" must be different letters of {LETTERS}, one per axis')
    return tuple(axis for axis, letter in enumerate(layout) if letter not in letters)


def shape_of_scales(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The shape of the scales of a tensor whose groups lie along `axes`."""
    return [1 if axis in axes else size for axis, size in enumerate(shape)]


def largest_magnitude(x: Tensor, axes: Sequence[int]) -> Tensor:
    """max |x| of every group; NaN where a value is NaN.

    >>> largest_magnitude(paddle.to_tensor([[1.0, -3.0]]), axes=(1,)).tolist()
    [[3.0]]
    """
    # Paddle takes an empty list of axes for all of them.
    return paddle.max(paddle.abs(x), axis=list(axes), keepdim=True) if axes else paddle.abs(x)


def sum_groups(x: Tensor, axes: Sequence[int], dtype: str) -> Tensor:
    """The sum of every group, added up in `dtype`."""
    return paddle.sum(x, axis=list(axes), keepdim=True, dtype=dtype) if axes else x.cast(dtype)


@paddle.jit.not_to_static
def sum_to_shape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The sums over what a tensor of `shape` was broadcast along to meet `x`: its gradient.

    >>> sum_to_shape(paddle.ones([2, 3, 4]), [3, 1]).tolist()
    [[8.0], [8.0], [8.0]]
    """
    extra = len(x.shape) - len(shape)
    own = [1] * extra + list(shape)
    axes = [axis for axis, size in enumerate(own) if size == 1]
    return sum_groups(x, axes, "float32").reshape(list(shape))


def require_values(x: Tensor, observer: str) -> None:
    """An error in a static program, where values are not known yet, for an observer that looks at them."""
    if not isinstance(x, Tensor):
        raise LowbitError(
            f"the observer {observer} is for calibration: it cannot be part of an exported or static "
            "program; use fixed scaling, or the observer minmax, clip_ratio or mse"
        )


def groups_as_rows(x: Tensor, axes: Sequence[int], observer: str) -> tuple[np.ndarray, list[int]]:
    """Magnitudes in NumPy, a row for every group in the order of the scales; and the scales' shape."""
    require_values(x, observer)
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    values = np.abs(x.numpy()).transpose([*kept, *axes])
    shape = shape_of_scales(x.shape, axes)
    return values.reshape(int(np.prod(shape)), -1), shape
