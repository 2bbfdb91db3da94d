"""The analysis of a quantized model on some images: batch after batch, kept as it goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import paddle

from lowbit.accel.convolutions import fast_convolutions
from lowbit.analysis.operands import view_gradients, view_inputs, view_weights
from lowbit.analysis.ranking import rank
from lowbit.analysis.sensitivity import Sums, add_batch
from lowbit.analysis.store import Store
from lowbit.data import Batch
from lowbit.nn.convert import preparation_of, quantized_layers
from lowbit.training.display import PlainDisplay


class Batches(Protocol):
    """What is measured on: labelled batches, the same each time."""

    def __len__(self) -> int: ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class Analysis:
    """The layers, the one that costs most first, and the model as a whole."""

    title: str
    images: int
    full: dict[str, float]  # loss and top1 in full precision
    quantized: dict[str, float]
    ranking: list[dict[str, Any]]


def analyze(
    model: paddle.nn.Layer,
    loader: Batches,
    store: Store | None = None,
    *,
    title: str = "",
    display: PlainDisplay | None = None,
    fast: bool = True,
) -> Analysis:
    """Measures every layer on the loader's images.

    With a store, the result is kept there, and an interrupted call continues where it stopped.

    analyze(model, loader).ranking[0]["name"]
    """
    display = display or PlainDisplay(silent=True)
    kept = (store.load() or {}) if store is not None else {}
    if "ranking" in kept:
        display.message("analyzed before: nothing is measured again")
        return _analysis(kept)
    sums = Sums()
    if kept:
        sums = Sums.of(kept["sums"])
        display.message(f"continuing after {sums.images} images of an earlier analysis")
    runs = 2 * len(quantized_layers(model)) + 2
    display.begin("analyze", runs * len(loader), runs * sums.batches)
    with fast_convolutions(wanted=fast):
        first = next(iter(loader.epoch(0)))
        views = view_weights(model), view_inputs(model, first), view_gradients(model, first)
        for batch in loader.epoch(0, start=sums.batches):
            add_batch(model, batch, sums, display.advance)
            if store is not None:
                store.save(title=title, sums=sums.values())
    ranking = rank(preparation_of(model), sums, *views)
    entry = {"title": title, "sums": sums.values(), "ranking": ranking}
    if store is not None:
        store.save(**entry)
    return _analysis(entry)


def _analysis(entry: dict[str, Any]) -> Analysis:
    sums = Sums.of(entry["sums"])

    def mean(one: Any) -> dict[str, float]:
        return {"loss": one.loss / sums.images, "top1": one.hits / sums.images}

    return Analysis(
        title=entry["title"],
        images=sums.images,
        full=mean(sums.full),
        quantized=mean(sums.quantized),
        ranking=entry["ranking"],
    )
