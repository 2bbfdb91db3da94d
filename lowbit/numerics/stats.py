"""Statistics of a quantized tensor: error, clipping and underflow, and histograms of levels in use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from lowbit.numerics.exact import as_float32, divide, multiply, subtract
from lowbit.numerics.fake_quant import dequantize


@dataclass(frozen=True, kw_only=True)
class QuantStats:
    """How a tensor x compares with what it became, y.

    | number | is | healthy |
    |---|---|---|
    | `sqnr` | 10 log10(sum x² / sum (y - x)²), in dB; infinite where nothing changed | high, 6 dB per bit |
    | `gain` | sum x·y / sum x²: how much of x is left in y | 1; clipping and underflow make it less |
    | `bias` | mean(y - x) / rms(x) | 0 |
    | `variance_ratio` | variance of y / variance of x | 1; above it is noise, below it values are lost |
    | `clipped` | values beyond the grid by over half a step / values that are not 0; or None, no grid | 0 |
    | `underflowed` | values that became 0 / values that are not 0 | low |

    Of a tensor that is all 0 nothing is lost: the ratios are 1, the other numbers 0.
    """

    sqnr: float
    gain: float
    bias: float
    variance_ratio: float
    clipped: float | None
    underflowed: float


@paddle.no_grad()
def measure_stats(
    x: Tensor,
    data: Tensor,
    scale: Tensor | None = None,
    *,
    lowest: int = 0,
    highest: int = 0,
    spacing: int = 1,
    most: int | None = None,
) -> QuantStats:
    """The statistics of `data`, which x became: integers with their scale, or plain values.

    `lowest` and `highest` are the bounds of the integers, `spacing` their distance. Sums are taken in fp64,
    since the squares of small gradients are nothing in fp32. That takes many passes: with `most`, evenly
    spaced entries of the first axis (of a gradient: samples) stand for all, no more than have so many values
    together, but at least one.

    >>> x, q = paddle.to_tensor([2.0, -1.5, 0.1, 12.0]), paddle.to_tensor([2, -2, 0, 7], "int8")
    >>> stats = measure_stats(x, q, paddle.ones([1]), lowest=-8, highest=7)
    >>> round(stats.sqnr, 2), stats.clipped, stats.underflowed
    (7.74, 0.25, 0.25)
    """
    x, data, scale = _some(x.detach(), data, scale, most)
    x = as_float32(x)
    y = as_float32(data) if scale is None else dequantize(as_float32(data), scale)
    nonzero = paddle.abs(x) > 0  # not `x != 0`: Paddle takes floats that differ by less than 1e-8 for equal
    wide_x, wide_y = x.cast("float64"), y.cast("float64")
    error = subtract(wide_y, wide_x)
    found = {
        "xx": _sum(multiply(wide_x, wide_x)),
        "xy": _sum(multiply(wide_x, wide_y)),
        "error": _sum(error),
        "square_error": _sum(multiply(error, error)),
        "variance_x": _variance(wide_x),
        "variance_y": _variance(wide_y),
        "nonzero": _count(nonzero),
        "underflowed": _count(nonzero & (paddle.abs(y) <= 0)),
    }
    if scale is not None:
        quotient = divide(x, scale)
        half = 0.5 * spacing
        found["clipped"] = _count((quotient < lowest - half) | (quotient > highest + half))
    # In one piece, so that a device is waited for once.
    numbers = dict(zip(found, paddle.stack(list(found.values())).tolist(), strict=True))
    return _stats_of(numbers, max(x.size, 1))


def _some(
    x: Tensor, data: Tensor, scale: Tensor | None, most: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    if most is None or x.size <= most:
        return x, data, scale
    entries = x.shape[0]
    stride = -(-entries // max(entries * most // x.size, 1))
    if scale is not None and scale.ndim == x.ndim and scale.shape[0] > 1:
        scale = scale[::stride]
    return x[::stride], data[::stride], scale


def _stats_of(sums: dict[str, float], size: int) -> QuantStats:
    xx, nonzero = sums["xx"], sums["nonzero"]
    noise = _ratio(sums["square_error"], xx, otherwise=0.0)
    return QuantStats(
        sqnr=math.inf if noise == 0 else -10 * math.log10(noise),
        gain=_ratio(sums["xy"], xx, otherwise=1.0),
        bias=_ratio(sums["error"] / size, math.sqrt(xx / size), otherwise=0.0),
        variance_ratio=_ratio(sums["variance_y"], sums["variance_x"], otherwise=1.0),
        clipped=_ratio(sums["clipped"], nonzero, otherwise=0.0) if "clipped" in sums else None,
        underflowed=_ratio(sums["underflowed"], nonzero, otherwise=0.0),
    )


def _ratio(a: float, b: float, *, otherwise: float) -> float:
    """a / b; infinite for b = 0, and `otherwise` where both are 0."""
    if b != 0:
        return a / b
    return otherwise if a == 0 else math.copysign(math.inf, a)


def _variance(x: Tensor) -> Tensor:
    """The variance; exactly 0 where all values are the same, whatever their mean is rounded to."""
    if x.size == 0:
        return paddle.zeros([], "float64")
    size = paddle.full([], x.size, "float64")
    centred = subtract(x, divide(_sum(x), size))
    varies = (x.max() > x.min()).cast("float64")
    return multiply(divide(_sum(multiply(centred, centred)), size), varies)


def _sum(x: Tensor) -> Tensor:
    return paddle.sum(x).reshape([])


def _count(found: Tensor) -> Tensor:
    return _sum(found.cast("float64"))  # first: Paddle's sum of no booleans has a broken type


BINS = 96
_BEYOND = 0.5  # of the grid's own width that is shown on each side; the outermost bins take the rest


@dataclass(frozen=True, kw_only=True)
class LevelHistogram:
    """Counts of equal bins from `start` on, `width` apart; with a grid, both are in its steps.

    `levels` counts what each integer of the grid from `lowest` to `highest` is used for; without a grid all
    three are None, and the bins are in the values' own unit. `clipped` is the fraction beyond the grid by
    over half a step.
    """

    start: float
    width: float
    counts: list[int]
    lowest: int | None = None
    highest: int | None = None
    levels: list[int] | None = None
    clipped: float | None = None
    spacing: int = 1  # of the grid's integers

    @property
    def dead_levels(self) -> int | None:
        """How many levels of the grid no value falls on."""
        return None if self.levels is None else self.levels.count(0)

    def values(self) -> dict[str, Any]:
        """As plain values for JSON, rounded to what can be seen: `dead` levels instead of all counts.

        >>> list(value_histogram(np.array([0.0, 1.0])).values())
        ['start', 'width', 'counts']
        """
        found: dict[str, Any] = {"start": _rounded(self.start), "width": _rounded(self.width)}
        found["counts"] = self.counts
        if self.levels is not None:
            found |= {"lowest": self.lowest, "highest": self.highest, "dead": self.dead_levels}
            found["clipped"] = _rounded(self.clipped)
            if self.spacing > 1:
                found["spacing"] = self.spacing
        return found


def level_histogram(
    steps: np.ndarray, lowest: int, highest: int, spacing: int = 1, *, bins: int = BINS
) -> LevelHistogram:
    """Of values divided by their scales, on the grid of the integers from `lowest` to `highest`.

    Only every `spacing`-th integer is on the grid.

    >>> found = level_histogram(np.array([-1.2, 0.4, 0.6, 9.0]), -2, 1)
    >>> found.levels, found.dead_levels, found.clipped
    ([0, 1, 1, 2], 1, 0.25)
    """
    steps = _finite(steps)
    beyond = max(1.0, _BEYOND * (highest - lowest))
    half = 0.5 * spacing
    low = max(min(_least(steps), lowest - half), lowest - beyond)
    high = min(max(_most(steps), highest + half), highest + beyond)
    levels = np.rint((np.clip(steps, lowest, highest) - lowest) / spacing).astype(np.int64)
    outside = (steps < lowest - half) | (steps > highest + half)
    return LevelHistogram(
        start=low,
        width=(high - low) / bins,
        counts=_counts(steps, low, high, bins),
        lowest=lowest,
        highest=highest,
        levels=np.bincount(levels, minlength=(highest - lowest) // spacing + 1).tolist(),
        clipped=float(outside.mean()) if steps.size else 0.0,
        spacing=spacing,
    )


def value_histogram(values: np.ndarray, *, bins: int = BINS) -> LevelHistogram:
    """Of values that are on no grid.

    >>> value_histogram(np.array([0.0, 1.0, 1.0]), bins=2).counts
    [1, 2]
    """
    values = _finite(values)
    low, high = _least(values), _most(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return LevelHistogram(start=low, width=(high - low) / bins, counts=_counts(values, low, high, bins))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _finite(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64).ravel()
    return values[np.isfinite(values)]


def _least(values: np.ndarray) -> float:
    return float(values.min()) if values.size else 0.0


def _most(values: np.ndarray) -> float:
    return float(values.max()) if values.size else 0.0


def _counts(values: np.ndarray, low: float, high: float, bins: int) -> list[int]:
    counts, _ = np.histogram(np.clip(values, low, high), bins=bins, range=(low, high))
    return counts.tolist()
