"""Granularity: which axes of a tensor own a scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from lowbit.errors import LowbitError, nearest
from lowbit.numerics.groups import shape_of_scales

LETTERS = "NCHW"
_PER_TENSOR = "per-tensor"


@dataclass(frozen=True)
class Granularity:
    """The letters of the axes along which scales differ; no letters stand for one scale per tensor.

    Which axis a letter means is said by a layout, one letter per axis:

    | tensor | layout |
    |---|---|
    | activation or its gradient | NCHW; behind a Linear NC, or NHC for [batch, tokens, features] |
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
    """The granularity that a word stands for: `per-tensor`, or letters of NCHW in any order.

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
    if not set(layout) <= set(LETTERS) or len(set(layout)) != len(layout):
        raise ValueError(f'layout "{layout}" must be different letters of {LETTERS}, one per axis')
    return tuple(axis for axis, letter in enumerate(layout) if letter not in letters)
