from __future__ import annotations

import numpy as np
import paddle
import pytest

from lowbit.numerics import fake_quantize, parse_grid, parse_observer, scale_from_range
from tests.numerics.test_kl import SHAPES
from tests.numerics.twin import F32


def slow_range(x: np.ndarray, highest: int) -> float:
    """The definition with Python loops."""
    magnitudes = [abs(float(v)) for v in x if v != 0]
    largest = max(magnitudes)
    counts: dict[int, int] = {}
    for m in magnitudes:
        place = min(int(m / largest * 2048), 2047)
        counts[place] = counts.get(place, 0) + 1

    def error(bins: int) -> float:
        total = 0.0
        for place, count in counts.items():
            level = min(round((place + 0.5) * highest / bins), highest)
            total += count * (place + 0.5 - level * bins / highest) ** 2
        return total

    errors = {bins: error(bins) for bins in range(16, 2049, 16)}
    least = min(errors.values())
    return largest * next(bins for bins in errors if errors[bins] <= least * (1 + 1e-12)) / 2048


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("word", ["int8", "uint8", "int4-narrow", "uint2"])
def test_equals_the_slow_twin(shape, word):
    grid = parse_grid(word)
    x = SHAPES[shape](np.random.default_rng(3)).astype(F32)
    found = parse_observer("hist").range(paddle.to_tensor(x), grid, (0,)).item()
    assert found == F32(slow_range(x, grid.highest))


@pytest.mark.parametrize("word", ["int8", "int4", "uint8"])
def test_no_other_observer_has_a_smaller_error(word):
    grid = parse_grid(word)
    x = paddle.to_tensor(np.random.default_rng(1).standard_t(3, 20_000).astype(F32))
    x = x if grid.signed else paddle.abs(x)

    def error(observer: str) -> float:
        range_ = parse_observer(observer).range(x, grid, (0,))
        return float(((fake_quantize(x, scale_from_range(range_, grid), grid) - x) ** 2).sum())

    best = error("hist")
    assert all(best <= 1.02 * error(other) for other in ("minmax", "mse(50)", "percentile(99.99)", "kl"))
    assert best < error("minmax")


def test_odd_values():
    grid, hist = parse_grid("int8"), parse_observer("hist")
    assert hist.range(paddle.zeros([5]), grid, (0,)).item() == 0
    assert np.isnan(hist.range(paddle.to_tensor([1.0, float("inf")]), grid, (0,)).item())
    assert np.isnan(hist.range(paddle.to_tensor([1.0, float("nan")]), grid, (0,)).item())
    assert hist.range(paddle.to_tensor([[3.0, 3.0], [0.0, 5.0]]), grid, (1,)).shape == [2, 1]
