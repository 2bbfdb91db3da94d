"""Accuracy of a model, and tables that compare evaluations."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import get_args

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.config.schema import CrossEntropy
from lowbit.data import Loader, topk_hits
from lowbit.nn import eval_mode, is_quantized, quantization_mode, refreshed_batch_norm
from lowbit.nn.inspect import Way
from lowbit.recipe.spec import TensorSpec
from lowbit.training.display import PlainDisplay
from lowbit.training.losses import cross_entropy
from lowbit.training.metrics import Meter
from lowbit.training.process import Ranks


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


# Evaluation: each sample is counted once, on any number of ranks.


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


Metrics = dict[str, float]


@dataclass(frozen=True)
class Row:
    """One test: `how` is the word of `quantization_mode`, `name` what papers call it, such as `w4a4`."""

    how: Way
    name: str
    refreshed: bool  # batch norm's statistics
    metrics: Metrics


def evaluate_in_all_ways(
    model: nn.Layer,
    evaluate: Callable[[], Metrics],
    batches: Callable[[], Iterable[Tensor]] | None = None,
) -> list[Row]:
    """The rows of the table; `batches` are those of training, for batch norm (None: leave these rows out).

    rows = evaluate_in_all_ways(model, lambda: evaluate(model, loader), lambda: training_images(50))
    """
    names, rows = names_of_ways(model), []
    for how in get_args(Way):
        with quantization_mode(model, how):
            rows.append(Row(how, names[how], False, evaluate()))
            if batches is not None:
                with refreshed_batch_norm(model, batches()):
                    rows.append(Row(how, names[how], True, evaluate()))
    return rows


def names_of_ways(model: nn.Layer) -> dict[Way, str]:
    """`w4a4`, `w4` and `fp`, with the bits that most of the quantized layers have.

    >>> names_of_ways(prepare(nn.Sequential(nn.Linear(4, 2)), make_recipe({"weight_bits": 4})))
    {'quantized': 'w4a8', 'weights': 'w4', 'full': 'fp'}
    """
    plans = [layer.plan.forward for layer in model.sublayers(include_self=True) if is_quantized(layer)]
    weight = _most_common("w", [plan.weight for plan in plans])
    input_ = _most_common("a", [plan.input for plan in plans])
    return {"quantized": weight + input_, "weights": weight or "weights", "full": "fp"}


def _most_common(letter: str, specs: list[TensorSpec]) -> str:
    words = Counter(f"{letter}{spec.grid.bits}" if spec.grid.is_integer else "" for spec in specs)
    return words.most_common(1)[0][0]


def rows_as_text(rows: list[Row]) -> str:
    """A line per row: accuracies in percent, and the loss.

    >>> print(rows_as_text([Row("full", "fp", True, {"loss": 1.0, "top1": 0.75})]))
    tested as  batch norm    top-1     loss
    fp         refreshed   75.00 %   1.0000
    """
    names = [name for name in rows[0].metrics if name.startswith("top")]
    width = max(9, *(len(row.name) for row in rows))
    title = f"{'tested as':<{width}}  {'batch norm':<10}"
    lines = [title + "".join(f"{name.replace('top', 'top-'):>9}" for name in names) + f"{'loss':>9}"]
    for row in rows:
        cells = [f"{100 * row.metrics[name]:.2f} %" for name in names] + [f"{row.metrics['loss']:.4f}"]
        statistics = "refreshed" if row.refreshed else "as trained"
        lines.append(f"{row.name:<{width}}  {statistics:<10}" + "".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)
