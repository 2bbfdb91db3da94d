"""How long the stages of inference take, and how much memory the process holds meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import psutil

Stage = Literal["preprocess", "inference", "postprocess"]
STAGES: tuple[Stage, ...] = ("preprocess", "inference", "postprocess")


@dataclass
class StageTimer:
    """Wall-clock seconds per stage, one entry per batch; what is not inside `stage` is not counted.

    timer = StageTimer()
    with timer.stage("inference"):
        engine.run(batch)
    """

    seconds: dict[Stage, list[float]] = field(default_factory=lambda: {stage: [] for stage in STAGES})
    images: int = 0
    peak_memory: int = 0  # bytes, the largest seen at the end of a stage

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage].append(time.perf_counter() - start)
        self.peak_memory = max(self.peak_memory, psutil.Process().memory_info().rss)

    @property
    def total(self) -> float:
        """Seconds in all stages together."""
        return sum(map(sum, self.seconds.values()))

    def mean(self, stage: Stage) -> float:
        """Seconds per batch."""
        times = self.seconds[stage]
        return sum(times) / len(times) if times else 0.0
