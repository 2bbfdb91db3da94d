"""Observers: how a range, and from it a scale, is chosen from values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import paddle
from paddle import Tensor

from lowbit.numerics import fused_groups
from lowbit.numerics.clip import clip_to_bound, usable_bound
from lowbit.numerics.exact import as_float32
from lowbit.numerics.fused_groups import ChannelRanges
from lowbit.numerics.grid import Grid
from lowbit.numerics.groups import largest_magnitude, shape_of_scales
from lowbit.numerics.hist import hist_range
from lowbit.numerics.kl import kl_range
from lowbit.numerics.mse import mse_range
from lowbit.numerics.percentile import percentile_range
from lowbit.numerics.scale import scale_from_range
from lowbit.numerics.sensitivity import sensitivity_range
from lowbit.numerics.words import join_word, name_and_number


def _minmax_range(x: Tensor, grid: Grid, axes: Sequence[int], parameter: float | None) -> Tensor:
    largest = fused_groups.ranges(x, axes)
    return largest_magnitude(x, axes) if largest is None else largest


@dataclass(frozen=True)
class _Kind:
    """What a name stands for: the function, and the number that may follow in brackets, if any."""

    range: Callable[[Tensor, Grid, Sequence[int], float | None], Tensor]
    default: float | None = None
    meaning: str = ""
    accepts: Callable[[float], bool] = lambda number: False


OBSERVERS: dict[str, _Kind] = {
    "minmax": _Kind(_minmax_range),
    "mse": _Kind(mse_range, 1, "iterations, from 1 to 50", lambda n: n in range(1, 51)),
    "percentile": _Kind(percentile_range, 99.99, "a percentage, from 50 to 100", lambda p: 50 <= p <= 100),
    "kl": _Kind(kl_range),
    "hist": _Kind(hist_range),
    "sensitivity": _Kind(sensitivity_range),
}


@dataclass(frozen=True)
class Observer:
    """A way to choose scales, called with values, a grid and the axes that share a scale.

    >>> x = paddle.to_tensor([[1.0, -7.0], [0.0, 14.0]])
    >>> parse_observer("minmax")(x, parse_grid("int4"), axes=(1,)).tolist()
    [[1.0], [2.0]]
    """

    name: str
    parameter: float | None = None

    def __call__(self, x: Tensor, grid: Grid, axes: Sequence[int]) -> Tensor:
        """The scales, fp32, with size 1 along `axes`."""
        return scale_from_range(self.range(x, grid, axes), grid)

    @paddle.jit.not_to_static
    def range(
        self,
        x: Tensor,
        grid: Grid,
        axes: Sequence[int],
        *,
        bound: Tensor | None = None,
        known: ChannelRanges | None = None,
    ) -> Tensor:
        """The largest magnitudes to keep, fp32: what an average over batches is taken of.

        0 where every value of a group is 0 or there is none, not finite where a value is not. With `bound`
        those of the values that PACT clips at it: a bound is one number, or one per group or several groups.
        `known` are the ranges of this same `x`, from which minmax and mse start.
        """
        x = as_float32(x.detach())
        axes = tuple(axes)
        if 0 in x.shape:
            return paddle.zeros(shape_of_scales(x.shape, axes), "float32")
        if bound is not None:
            largest = None
            if self.name == "minmax":
                largest = fused_groups.ranges(x, axes, signed=grid.signed)
            if largest is not None:  # the bound is the same for a whole group
                return paddle.minimum(largest, usable_bound(bound.detach()))
            x = clip_to_bound(x, bound.detach(), signed=grid.signed)
        elif known is not None and self.name in ("minmax", "mse"):
            start = known.of(axes)
            if start is not None:
                return start if self.name == "minmax" else mse_range(x, grid, axes, self.parameter, start)
        return OBSERVERS[self.name].range(x, grid, axes, self.parameter)

    def __str__(self) -> str:
        return join_word(self.name, self.parameter, OBSERVERS[self.name].default)


def observer_names() -> list[str]:
    """The words for observers, sorted."""
    return sorted(OBSERVERS)


def parse_observer(word: str) -> Observer:
    """The observer that a word stands for: minmax, mse, mse(50), percentile, percentile(99.9), kl, hist,
    sensitivity.

    >>> str(parse_observer("percentile(99.9)"))
    'percentile(99.9)'
    """
    return Observer(*name_and_number("observer", word, OBSERVERS))
