"""Sums of loss, its parts and top-k hits that can be added over batches, ranks and a restart."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lowbit.training.distributed import Ranks


@dataclass
class Meter:
    """Loss and accuracy over the samples seen so far.

    >>> meter = Meter(topk=(1,)); meter.add(loss=2.0, hits=np.array([1.0]), samples=4); meter.result()
    {'loss': 2.0, 'top1': 0.25}
    """

    topk: tuple[int, ...] = (1, 5)
    sums: np.ndarray = field(default=None)  # loss·samples, hits of each k, parts·samples, samples
    parts: tuple[str, ...] = ()  # what the loss is made of, where that is more than one thing

    def __post_init__(self) -> None:
        if self.sums is None:
            self.sums = np.zeros(len(self.topk) + len(self.parts) + 2)

    def add(
        self, *, loss: float, hits: np.ndarray, samples: int, parts: dict[str, float] | None = None
    ) -> None:
        """Adds a batch; `loss` and `parts` are its means."""
        own = [(parts or {})[name] * samples for name in self.parts]
        self.sums += np.array([loss * samples, *hits, *own, samples])

    @property
    def samples(self) -> int:
        """Samples added on this rank."""
        return int(self.sums[-1])

    def result(self, ranks: Ranks | None = None) -> dict[str, float]:
        """Mean loss and accuracies as fractions, over all ranks' samples; NaN when there were none."""
        sums = ranks.sum(self.sums) if ranks else self.sums
        means = sums[:-1] / sums[-1] if sums[-1] else np.full(len(sums) - 1, np.nan)
        names = ("loss", *(f"top{k}" for k in self.topk), *self.parts)
        return {name: float(value) for name, value in zip(names, means, strict=True)}
