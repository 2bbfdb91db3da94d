"""Evaluating a model on a loader, and a table that compares two evaluations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import paddle

from lowbit.config.schema import CrossEntropy
from lowbit.data import Loader, topk_hits
from lowbit.nn import eval_mode
from lowbit.training.display import PlainDisplay
from lowbit.training.distributed import Ranks
from lowbit.training.losses import cross_entropy
from lowbit.training.metrics import Meter


def difference(fp32: dict[str, float], quantized: dict[str, float]) -> dict[str, float]:
    """Quantized minus fp32, for every figure.

    >>> difference({"top1": 0.75}, {"top1": 0.5})
    {'top1': -0.25}
    """
    return {name: quantized[name] - value for name, value in fp32.items()}


def comparison_table(
    fp32: dict[str, float],
    quantized: dict[str, float],
    *,
    titles: tuple[str, str] = ("fp32", "quantized"),
) -> str:
    """Three rows: accuracies in percent, their difference in points.

    >>> print(comparison_table({"loss": 1.0, "top1": 0.75}, {"loss": 1.25, "top1": 0.5}))
                  top-1     loss
    fp32        75.00 %   1.0000
    quantized   50.00 %   1.2500
    difference   -25.00  +0.2500
    """
    names = [*(name for name in fp32 if name.startswith("top")), "loss"]
    change = difference(fp32, quantized)
    rows = ((titles[0], fp32, ""), (titles[1], quantized, ""), ("difference", change, "+"))
    lines = [" " * 10 + "".join(f"{name.replace('top', 'top-'):>9}" for name in names)]
    for title, figures, sign in rows:
        cells = [_cell(name, figures[name], sign) for name in names]
        lines.append(f"{title:<10}" + "".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)


def _cell(name: str, value: float, sign: str) -> str:
    if name == "loss":
        return f"{value:{sign}.4f}"
    return f"{100 * value:{sign}.2f}" + ("" if sign else " %")


# ----------------------------------------------------------------------------------------------------------
# Accuracy of a model over a validation set, each sample counted once on however many ranks.


_log = logging.getLogger(__name__)


def evaluate(
    model: paddle.nn.Layer,
    loader: Loader,
    *,
    loss: CrossEntropy | None = None,
    topk: tuple[int, ...] = (1, 5),
    ranks: Ranks | None = None,
    display: PlainDisplay | None = None,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> dict[str, float]:
    """Mean loss and top-k accuracies (as fractions); leaves the model in the mode it was in.

    `autocast` is what the forward pass needs around it: a model held in fp16 cannot take fp32 images.

    >>> evaluate(model, loader)  # doctest: +SKIP
    {'loss': 1.93, 'top1': 0.564, 'top5': 0.79}
    """
    section, display = loss or CrossEntropy(), display or PlainDisplay(silent=True)
    meter, broken = Meter(topk=topk), 0
    display.begin("evaluate", len(loader))
    with eval_mode(model):
        for batch in loader.epoch(0):
            if batch.weight > 0:  # a rank without a share of the last batch gets a stand-in of weight 0
                with autocast():
                    logits = model(paddle.to_tensor(batch.images)).astype("float32")
                value = cross_entropy(section, logits, paddle.to_tensor(batch.labels))
                hits = topk_hits(logits.numpy(), batch.labels, topk)
                broken += int((~np.isfinite(logits.numpy()).all(axis=1)).sum())
                meter.add(loss=float(value), hits=hits, samples=len(batch.labels))
            display.advance()
    if broken:
        _log.warning("the model answers NaN or Inf for %d of %d images", broken, meter.samples)
    return meter.result(ranks)
