"""Health: what quantizing did to a tensor, in a few numbers by which a layer that goes wrong can be named."""

from __future__ import annotations

import math
from dataclasses import dataclass

import paddle
from paddle import Tensor

from lowbit.numerics.exact import as_float32, divide, multiply, subtract
from lowbit.numerics.quantize import dequantize


@dataclass(frozen=True, kw_only=True)
class Health:
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
def measure_health(
    x: Tensor,
    data: Tensor,
    scale: Tensor | None = None,
    *,
    lowest: int = 0,
    highest: int = 0,
    most: int | None = None,
) -> Health:
    """The health of `data`, which x became: integers with their scale, of any granularity; or plain values.

    `lowest` and `highest` are the bounds of the integers. Sums are taken in fp64, since the squares of small
    gradients are nothing in fp32. That takes many passes: with `most`, evenly spaced entries of the first
    axis (of a gradient: samples) stand for all, no more than have so many values together, but at least one.

    >>> x, q = paddle.to_tensor([2.0, -1.5, 0.1, 12.0]), paddle.to_tensor([2, -2, 0, 7], "int8")
    >>> health = measure_health(x, q, paddle.ones([1]), lowest=-8, highest=7)
    >>> round(health.sqnr, 2), health.clipped, health.underflowed
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
        found["clipped"] = _count((quotient < lowest - 0.5) | (quotient > highest + 0.5))
    # In one piece, so that a device is waited for once.
    numbers = dict(zip(found, paddle.stack(list(found.values())).tolist(), strict=True))
    return _health_of(numbers, max(x.size, 1))


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


def _health_of(sums: dict[str, float], size: int) -> Health:
    xx, nonzero = sums["xx"], sums["nonzero"]
    noise = _ratio(sums["square_error"], xx, otherwise=0.0)
    return Health(
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
