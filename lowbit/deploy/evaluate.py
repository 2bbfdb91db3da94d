"""Accuracy of an exported model over a validation set, counted as training counts it."""

from __future__ import annotations

import numpy as np

from lowbit.data.accuracy import topk_hits
from lowbit.data.loader import Loader
from lowbit.deploy.engines.engine import Engine
from lowbit.errors import LowbitError


def evaluate_engine(engine: Engine, loader: Loader, topk: tuple[int, ...] = (1, 5)) -> dict[str, float]:
    """Fractions `top1`, `top5` of the images whose label is among the best answers, and how many `samples`.

    >>> evaluate_engine(PaddleEngine("export"), loader)  # doctest: +SKIP
    {'top1': 0.564, 'top5': 0.79, 'samples': 50000}
    """
    hits = np.zeros(len(topk))
    samples = 0
    for batch in loader.epoch(0):
        if batch.weight == 0:  # a stand-in: the images of this batch are other processes'
            continue
        logits = engine.run(batch.images)
        largest = int(batch.labels.max())
        if largest >= logits.shape[1]:
            raise LowbitError(
                f"the data has a label {largest}, but the model has {logits.shape[1]} outputs (labels 0 to "
                f"{logits.shape[1] - 1}); it was trained on other classes"
            )
        if not np.isfinite(logits).all():
            raise LowbitError(
                "the exported model answers NaN or Inf; its weights are broken: export it again"
            )
        hits += topk_hits(logits, batch.labels, topk)
        samples += len(batch.labels)
    if samples == 0:
        raise LowbitError("there are no images to evaluate on")
    return {f"top{k}": float(count / samples) for k, count in zip(topk, hits, strict=True)} | {
        "samples": samples
    }
