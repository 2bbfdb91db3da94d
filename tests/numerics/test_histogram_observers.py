"""The observers for calibration: percentile, kl, hist and sensitivity."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit.errors import LowbitError
from lowbit.numerics import fake_quantize, parse_grid, parse_observer, scale_from_range
from lowbit.numerics.histogram_observers import SENSITIVITY_BINS, Sensitivity
from tests.support import numerics_twin as twin
from tests.support.numerics_twin import F32

INT8 = parse_grid("int8")
NOT_ZERO = st.floats(2**-20, 100, width=32) | st.floats(-100, -(2**-20), width=32)


@given(
    x=arrays(F32, st.integers(1, 300), elements=NOT_ZERO),
    percent=st.sampled_from(["50", "66.6", "99", "99.9", "99.99", "100"]),
)
@settings(max_examples=100)
def test_equals_the_twin(x, percent):
    found = parse_observer(f"percentile({percent})").range(paddle.to_tensor(x), INT8, (0,))
    assert found.item() == twin.percentile(np.abs(x), percent)


def test_the_rank_is_exact():
    x = paddle.arange(1, 1001, dtype="float32")
    assert parse_observer("percentile(99.9)").range(x, INT8, (0,)).item() == 999
    assert parse_observer("percentile(100)").range(x, INT8, (0,)).item() == 1000


def test_mostly_zeros():
    x = np.zeros((2, 1000), F32)
    x[0, 3] = 5
    found = parse_observer("percentile(90)")(paddle.to_tensor(x), INT8, (1,)).numpy()
    assert found[0, 0] == F32(5) / F32(127) and found[1, 0] == 1


class _Observes(paddle.nn.Layer):
    def __init__(self, word: str) -> None:
        super().__init__()
        self.observer = parse_observer(word)

    def forward(self, x):
        return self.observer(x, INT8, (0, 1))


@pytest.mark.parametrize("word", ["percentile", "kl", "mse(2)"])
def test_it_is_for_calibration(word):
    spec = [paddle.static.InputSpec([None, 2], "float32")]
    net = paddle.jit.to_static(_Observes(word), input_spec=spec, full_graph=True)
    name = word.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(LowbitError, match=f"the observer {name} is for calibration"):
        net(paddle.ones([1, 2]))


SHAPES = {
    "normal": lambda rng: rng.standard_normal(4000),
    "heavy": lambda rng: rng.standard_t(2, 4000),
    "relu": lambda rng: np.maximum(rng.standard_normal(4000), 0),
    "few": lambda rng: rng.standard_normal(7),
}


def slow_kl_range(x: np.ndarray, highest: int) -> float:
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
def test_kl_equals_the_slow_twin(shape, word):
    grid = parse_grid(word)
    x = SHAPES[shape](np.random.default_rng(3)).astype(F32)
    found = parse_observer("kl").range(paddle.to_tensor(x), grid, (0,)).item()
    assert found == F32(slow_kl_range(x, grid.highest))


def test_clips_a_lone_outlier():
    x = np.random.default_rng(0).standard_normal(20_000).astype(F32)
    x[0] = 100
    assert parse_observer("kl").range(paddle.to_tensor(x), parse_grid("int8"), (0,)).item() < 20
    assert parse_observer("minmax").range(paddle.to_tensor(x), parse_grid("int8"), (0,)).item() == 100


def slow_hist_range(x: np.ndarray, highest: int) -> float:
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
def test_hist_equals_the_slow_twin(shape, word):
    grid = parse_grid(word)
    x = SHAPES[shape](np.random.default_rng(3)).astype(F32)
    found = parse_observer("hist").range(paddle.to_tensor(x), grid, (0,)).item()
    assert found == F32(slow_hist_range(x, grid.highest))


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


def seen(x: np.ndarray, gradient: np.ndarray) -> Sensitivity:
    found = Sensitivity()
    found.widen(float(np.abs(x).max()))
    found.add(x, gradient)
    return found


def slow_cost(x: np.ndarray, gradient: np.ndarray, range_: float, highest: int) -> float:
    """The definition, value by value, without a histogram."""
    total, step = 0.0, range_ / highest
    for value, slope in zip(np.abs(x), gradient, strict=True):
        total += (slope * (min(round(value / step), highest) * step - value)) ** 2
    return total


@settings(max_examples=25)
@given(seed=st.integers(0, 999), bits=st.sampled_from([3, 4, 8]), tail=st.sampled_from([1.0, 5.0, 50.0]))
def test_no_other_range_costs_much_less(seed, bits, tail):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(3000)
    x[:10] *= tail
    gradient = rng.standard_normal(3000) / (1 + np.abs(x))
    highest = 2 ** (bits - 1) - 1
    found = seen(x, gradient).range(highest=highest)
    others = [slow_cost(x, gradient, np.abs(x).max() * share, highest) for share in np.linspace(0.02, 1, 50)]
    # Values stand for the middles of their bins.
    assert (
        slow_cost(x, gradient, found, highest)
        <= 1.1 * min(others) + 1e-3 * np.square(gradient).sum() / SENSITIVITY_BINS
    )


def test_what_has_no_influence_is_clipped():
    x, gradient = np.linspace(0, 1, 1000), np.ones(1000)
    x[-5:], gradient[-5:] = 100.0, 0.0
    assert seen(x, gradient).range(highest=255) < 1.5
    assert seen(x, np.ones(1000)).range(highest=255) > 50


def test_zeros_cost_nothing_and_without_gradients_the_largest_is_kept():
    x = np.array([0.0, 0.0, 2.0])
    assert seen(x, np.array([9.0, 9.0, 0.0])).range(highest=7) == 2.0
    assert seen(np.zeros(3), np.ones(3)).range(highest=7) == 0.0


@pytest.mark.parametrize("factor", [1.0, 3.0, 1000.0])
def test_a_wider_batch_later(factor):
    rng = np.random.default_rng(0)
    x, gradient = rng.random(1000), rng.random(1000)
    found = seen(x, gradient)
    found.widen(factor)
    found.add(x * factor, gradient)
    assert found.largest == max(factor, np.abs(x).max())
    assert found.counts.sum() == pytest.approx(2 * np.square(gradient).sum())
    step = found._top / SENSITIVITY_BINS
    for limit in (0.3, 0.6, 0.8):  # the merged bins hold what lay in them
        bins = int(limit * SENSITIVITY_BINS)
        both = np.concatenate([x, x * factor])
        weights = np.square(np.concatenate([gradient, gradient]))
        assert found.counts[:bins].sum() == pytest.approx(weights[both < bins * step].sum(), rel=1e-6)


def test_values_alone_are_not_enough():
    with pytest.raises(LowbitError, match="gradients, which only calibration has"):
        parse_observer("sensitivity")(paddle.ones([4]), parse_grid("int8"), (0,))
