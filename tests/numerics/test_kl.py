from __future__ import annotations

import math

import numpy as np
import paddle
import pytest

from lowbit.numerics import parse_grid, parse_observer
from tests.numerics.twin import F32

SHAPES = {
    "normal": lambda rng: rng.standard_normal(4000),
    "heavy": lambda rng: rng.standard_t(2, 4000),
    "relu": lambda rng: np.maximum(rng.standard_normal(4000), 0),
    "few": lambda rng: rng.standard_normal(7),
}


def slow_range(x: np.ndarray, highest: int) -> float:
    """The definition with Python loops."""
    magnitudes = [abs(float(v)) for v in x if v != 0]
    largest = max(magnitudes)
    counts = [0] * 2048
    for m in magnitudes:
        counts[min(int(m / largest * 2048), 2047)] += 1
    best, least = 2048, math.inf
    for bins in range(2048, 127, -16):
        if bins <= highest or not any(counts[:bins]):
            continue
        levels: dict[int, list[int]] = {}
        for j in range(bins):
            if counts[j]:
                levels.setdefault(round((j + 0.5) * highest / bins), []).append(j)
        q = {j: sum(counts[i] for i in level) / len(level) for level in levels.values() for j in level}
        p = dict(enumerate(counts[:bins]))
        p[bins - 1] += sum(counts[bins:])
        total_p, total_q = sum(p.values()), sum(q.values())
        if p[bins - 1] and bins - 1 not in q:
            q[bins - 1] = 1e-4 * total_q
        found = sum(p[j] / total_p * math.log(p[j] / total_p / (q[j] / total_q)) for j in q)
        if found <= least + 1e-12:
            best, least = bins, min(found, least)
    return largest * best / 2048


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("word", ["int8", "uint8", "int4-narrow"])
def test_equals_the_slow_twin(shape, word):
    grid = parse_grid(word)
    x = SHAPES[shape](np.random.default_rng(3)).astype(F32)
    found = parse_observer("kl").range(paddle.to_tensor(x), grid, (0,)).item()
    assert found == F32(slow_range(x, grid.highest))


def test_clips_a_lone_outlier():
    x = np.random.default_rng(0).standard_normal(20_000).astype(F32)
    x[0] = 100
    assert parse_observer("kl").range(paddle.to_tensor(x), parse_grid("int8"), (0,)).item() < 20
    assert parse_observer("minmax").range(paddle.to_tensor(x), parse_grid("int8"), (0,)).item() == 100
