from __future__ import annotations

import pytest

from lowbit.deploy.engines import EngineOptions
from lowbit.deploy.verify import latency
from lowbit.deploy.verify.latency import Latency, compare_latency
from tests.support.small_net import images


class _Engine:
    """Takes so many ticks of a clock that only it moves."""

    def __init__(self, clock: list[float], seconds: float, log: list[str], name: str) -> None:
        self.clock, self.seconds, self.log, self.name = clock, seconds, log, name
        self.options = EngineOptions(device="cpu", threads=2)

    def run(self, batch):
        self.log.append(self.name)
        self.clock[0] += self.seconds
        return batch


@pytest.mark.parametrize(
    ("fp32", "quantized", "verdict"),
    [
        (0.08, 0.1, "quantized is slower (0.80x)"),
        (0.2, 0.1, "quantized is faster (2.00x)"),
        (0.1, 0.101, "no clear difference (0.99x)"),
    ],
)
def test_ratio_and_verdict(monkeypatch, fp32, quantized, verdict):
    clock, log = [0.0], []
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])
    engines = [_Engine(clock, fp32, log, "f"), _Engine(clock, quantized, log, "q")]
    found = compare_latency(*engines, images(4), rounds=5)
    assert found.verdict() == verdict
    assert (found.batch_size, found.threads, found.rounds) == (4, 2, 5)
    assert found.fp32_ms == pytest.approx(1000 * fp32)
    assert found.quantized_ms == pytest.approx(1000 * quantized)
    assert found.lower <= found.ratio <= found.upper


def test_they_take_turns_and_quick_runs_are_repeated(monkeypatch):
    clock, log = [0.0], []
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])
    compare_latency(_Engine(clock, 0.015, log, "f"), _Engine(clock, 1.0, log, "q"), images(1), rounds=4)
    assert "".join(log) == "fff" + "qq" + "qff" + "ffq" + "qff" + "ffq"


@pytest.mark.parametrize(("seconds", "rounds"), [(0.1, 15), (0.45, 6), (3.0, 3)])
def test_slow_networks_have_fewer_rounds(monkeypatch, seconds, rounds):
    clock, log = [0.0], []
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])
    both = _Engine(clock, seconds, log, "f"), _Engine(clock, seconds, log, "q")
    assert compare_latency(*both, images(1)).rounds == rounds


@pytest.mark.parametrize(("ratio", "lower", "upper"), [(1.02, 1.01, 1.1), (1.4, 0.9, 1.8), (0.7, 0.5, 1.2)])
def test_a_verdict_needs_three_quarters_of_the_rounds(ratio, lower, upper):
    assert Latency(1, 2, 1, 1, ratio, lower, upper, 15).verdict() == f"no clear difference ({ratio:.2f}x)"
