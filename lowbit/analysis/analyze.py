"""The analysis of a quantized model on some images: batch after batch, kept in analysis.json as it goes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import paddle

from lowbit.accel.convolutions import fast_convolutions
from lowbit.analysis.operands import OperandView, view_gradients, view_inputs, view_weights
from lowbit.analysis.sensitivity import Sum, Sums, add_batch
from lowbit.data import Batch
from lowbit.errors import LowbitError
from lowbit.files import write_atomically
from lowbit.nn.convert import Preparation, preparation_of, quantized_layers
from lowbit.recipe.plan import Plan
from lowbit.training.display import PlainDisplay

FORMAT = 3
FILE = "analysis.json"


def folder_of(checkpoint: Path) -> Path:
    """The run of a checkpoint, or the folder of one that is not in a run folder.

    >>> folder_of(Path("runs/w4a4/checkpoints/best.lowbit"))
    PosixPath('runs/w4a4')
    """
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent


class Store:
    """One entry of analysis.json, found by the checkpoint's digest and all settings that matter."""

    def __init__(self, path: Path, *, checkpoint: str, digest: str, settings: dict[str, Any]) -> None:
        self._path, self._checkpoint, self._digest = path, checkpoint, digest
        self._settings = settings
        text = json.dumps({"digest": digest, **settings}, sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()[:16]

    def load(self) -> dict[str, Any] | None:
        """What was kept of the same analysis; None when there is nothing."""
        return self._read().get(self._key)

    def save(self, **values: Any) -> None:
        """Keeps it; analyses of what a checkpoint of the same name was before are dropped."""
        entries = {
            key: entry
            for key, entry in self._read().items()
            if entry["checkpoint"] != self._checkpoint or entry["sha256"] == self._digest
        }
        about = {"checkpoint": self._checkpoint, "sha256": self._digest, "settings": self._settings}
        entries[self._key] = {**about, **values}
        text = json.dumps({"format": FORMAT, "analyses": entries}, allow_nan=False)
        write_atomically(self._path, lambda file: file.write_text(text, "utf-8"))

    def _read(self) -> dict[str, Any]:
        if not self._path.is_file():
            return {}
        try:
            found = json.loads(self._path.read_text("utf-8"))
            entries = found["analyses"] if found["format"] == FORMAT else {}
            for entry in entries.values():
                if not isinstance(entry["checkpoint"], str) or not isinstance(entry["sha256"], str):
                    raise ValueError("an entry without its checkpoint")
            return entries
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LowbitError(f"cannot read {self._path} ({error}): remove it to analyze again") from None


def rank(
    preparation: Preparation,
    sums: Sums,
    weights: dict[str, OperandView],
    inputs: dict[str, OperandView],
    gradients: dict[str, dict[str, OperandView]],
) -> list[dict[str, Any]]:
    """One row a quantized layer, the one that costs most first.

    `only_loss` is the loss that the layer adds when it alone is quantized, `without_loss` the loss that goes
    away when it alone is not; `only_top1` and `without_top1` are the accuracies, `divergence` how far the
    answers move when it alone is quantized (KL divergence, in nats). The order is by `only_loss`:
    without a layer, the errors that others have added before it are seen differently. A layer has
    two gradients, one for each backward product: the row has the figures of the one with the lower
    SQNR, and both histograms.
    """
    rows = []
    for assigned in preparation.layers:
        name = assigned.layer.name
        if name not in sums.only:
            continue
        only, without = sums.only[name], sums.without[name]
        row: dict[str, Any] = {
            "name": name,
            "shape": list(assigned.layer.shape),
            "bits": _bits(assigned.plan),
            "only_loss": _mean(only, sums) - _mean(sums.full, sums),
            "only_top1": only.hits / sums.images,
            "divergence": only.divergence / sums.images,
            "without_loss": _mean(sums.quantized, sums) - _mean(without, sums),
            "without_top1": without.hits / sums.images,
        }
        for role, views in (("weight", weights), ("input", inputs)):
            view = views.get(name, OperandView()).values()
            row |= {f"{role}_{key}": value for key, value in view.items()}
        rows.append(row | _gradients(gradients.get(name, {})))
    return sorted(rows, key=lambda row: -row["only_loss"])


def _gradients(views: dict[str, OperandView]) -> dict[str, Any]:
    found = {operand.split(".")[0]: view.values() for operand, view in views.items()}
    worst = min(
        found.values(),
        key=lambda values: math.inf if values["sqnr"] is None else values["sqnr"],
        default=OperandView().values(),
    )
    row: dict[str, Any] = {f"gradient_{key}": worst[key] for key in ("sqnr", "clipped", "dead")}
    row["gradient_histograms"] = {product: values["histogram"] for product, values in found.items()}
    return row


def _mean(one: Sum, sums: Sums) -> float:
    return one.loss / sums.images


def _bits(plan: Plan) -> str:
    """
    >>> _bits(Plan())
    'W32A32'
    """
    parts = {"W": plan.forward.weight.grid, "A": plan.forward.input.grid}
    return "".join(f"{letter}{grid.bits or 32}" for letter, grid in parts.items())


class LabelledBatches(Protocol):
    """What is measured on: labelled batches, the same each time."""

    def __len__(self) -> int: ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class Measurement:
    """The layers, the one that costs most first, and the model as a whole."""

    title: str
    images: int
    full: dict[str, float]  # loss and top1 in full precision
    quantized: dict[str, float]
    ranking: list[dict[str, Any]]


def analyze(
    model: paddle.nn.Layer,
    loader: LabelledBatches,
    store: Store | None = None,
    *,
    title: str = "",
    display: PlainDisplay | None = None,
    fast: bool = True,
) -> Measurement:
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


def _analysis(entry: dict[str, Any]) -> Measurement:
    sums = Sums.of(entry["sums"])

    def mean(one: Any) -> dict[str, float]:
        return {"loss": one.loss / sums.images, "top1": one.hits / sums.images}

    return Measurement(
        title=entry["title"],
        images=sums.images,
        full=mean(sums.full),
        quantized=mean(sums.quantized),
        ranking=entry["ranking"],
    )
