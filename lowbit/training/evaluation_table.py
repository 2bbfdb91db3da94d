"""One quantized model tested as quantized, by its weights alone and in full; batch norm as it is and anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import get_args

from paddle import Tensor, nn

from lowbit.nn import is_quantized, quantization_mode, refreshed_batch_norm
from lowbit.nn.inspect import Way
from lowbit.recipe.spec import TensorSpec

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
