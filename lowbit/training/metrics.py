"""Sums of loss and top-k hits that can be added over batches, ranks and a restart."""

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
    sums: np.ndarray = field(default=None)  # loss·samples, hits of each k, samples

    def __post_init__(self) -> None:
        if self.sums is None:
            self.sums = np.zeros(len(self.topk) + 2)

    def add(self, *, loss: float, hits: np.ndarray, samples: int) -> None:
        """Adds a batch; `loss` is its mean."""
        self.sums += np.array([loss * samples, *hits, samples])

    @property
    def samples(self) -> int:
        """Samples added on this rank."""
        return int(self.sums[-1])

    def result(self, ranks: Ranks | None = None) -> dict[str, float]:
        """Mean loss and accuracies as fractions, over all ranks' samples; NaN when there were none."""
        sums = ranks.sum(self.sums) if ranks else self.sums
        means = sums[:-1] / sums[-1] if sums[-1] else np.full(len(sums) - 1, np.nan)
        return {"loss": float(means[0])} | {
            f"top{k}": float(v) for k, v in zip(self.topk, means[1:], strict=True)
        }
