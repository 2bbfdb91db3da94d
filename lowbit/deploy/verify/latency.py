"""How long one engine takes for the fp32 and for the quantized form of a network, measured in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from lowbit.deploy.engines.engine import Engine

_ROUNDS = 15
_FEWEST_ROUNDS = 3
_SECONDS = 6.0  # for all rounds of a batch size
_ROUND_SECONDS = 0.03  # shorter ones would measure the clock and the scheduler
_SAME = 0.03  # a ratio this close to 1 counts as equal


@dataclass(frozen=True)
class Latency:
    """Milliseconds per batch (medians), and how many times as fast the quantized form is."""

    batch_size: int
    threads: int
    fp32_ms: float
    quantized_ms: float
    ratio: float  # the median of the rounds' ratios fp32 / quantized: above 1, quantized is faster
    lower: float  # a quarter of the rounds has a lower ratio,
    upper: float  # and a quarter a higher one
    rounds: int

    def verdict(self) -> str:
        """Which form is faster, in words; the rounds must agree on it.

        >>> Latency(1, 2, 8.0, 10.0, 0.8, 0.78, 0.83, 15).verdict()
        'quantized is slower (0.80x)'
        """
        if abs(self.ratio - 1) <= _SAME or self.lower <= 1 <= self.upper:
            return f"no clear difference ({self.ratio:.2f}x)"
        return f"quantized is {'faster' if self.ratio > 1 else 'slower'} ({self.ratio:.2f}x)"


def compare_latency(
    fp32: Engine,
    quantized: Engine,
    images: np.ndarray,
    *,
    rounds: int = _ROUNDS,
    seconds: float = _SECONDS,
) -> Latency:
    """Both take turns on the same batch, so that what else the machine does falls on both alike.

    compare_latency(OnnxRuntimeEngine("fp32.onnx"), OnnxRuntimeEngine("int8.onnx"), images).verdict()
    """
    sides = {"fp32": lambda: fp32.run(images), "quantized": lambda: quantized.run(images)}
    times = time_in_turns(sides, rounds=rounds, seconds=seconds)
    return as_latency(times["fp32"], times["quantized"], len(images), quantized.options.threads)


def time_in_turns(
    sides: Mapping[str, Callable[[], object]], *, rounds: int = _ROUNDS, seconds: float = _SECONDS
) -> dict[str, list[float]]:
    """Seconds of a run of each side, one entry a round; in every round all take their turn.

    `seconds` is for all rounds, where that leaves enough of them.
    """
    once = {name: _warm_seconds(run) for name, run in sides.items()}
    repeats = {name: max(1, round(_ROUND_SECONDS / one)) for name, one in once.items()}
    whole_round = sum(once[name] * repeats[name] for name in sides)
    rounds = min(rounds, max(_FEWEST_ROUNDS, int(seconds / whole_round)))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 else reversed(list(sides)):
            times[name].append(_seconds(sides[name], repeats[name]))
    return times


def as_latency(fp32: list[float], quantized: list[float], batch_size: int, threads: int) -> Latency:
    """Two sides of `time_in_turns`, compared round by round."""
    ratios = [one / other for one, other in zip(fp32, quantized, strict=True)]
    lower, _, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return Latency(
        batch_size=batch_size,
        threads=threads,
        fp32_ms=1000 * statistics.median(fp32),
        quantized_ms=1000 * statistics.median(quantized),
        ratio=statistics.median(ratios),
        lower=lower,
        upper=upper,
        rounds=len(ratios),
    )


def _warm_seconds(run: Callable[[], object]) -> float:
    """Of one run; the first runs, in which engines prepare themselves, do not count."""
    run()
    second = _seconds(run, 1)
    return max(second if second > _ROUND_SECONDS else _seconds(run, 1), 1e-6)


def _seconds(run: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times
