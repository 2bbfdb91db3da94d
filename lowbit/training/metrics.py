"""Metrics of a run: accuracy meters, metrics.jsonl, and the statistics of quantized layers."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.extras import install_command
from lowbit.files import write_atomically
from lowbit.nn.inspect import Sight, kept_scales, layers_by_name, watching, weight_health
from lowbit.nn.oscillation import oscillation_of
from lowbit.training.process import Ranks

if TYPE_CHECKING:
    from lowbit.training.session import Session


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


# metrics.jsonl (one JSON object per line), and VisualDL's curves and histograms.


_BUCKETS = 50


class MetricsLog:
    """Appends records with their step. On resume, records from after the checkpoint are dropped first,
    so that the file reads like that of an undisturbed run; a run that starts (None) starts a new file."""

    def __init__(self, folder: Path, *, resumed_step: int | None, visualdl: bool | None) -> None:
        path = folder / "metrics.jsonl"
        kept = (
            []
            if resumed_step is None
            else [line for line in _lines(path) if json.loads(line)["step"] <= resumed_step]
        )
        self._path = path
        write_atomically(path, lambda file: file.write_text("".join(f"{line}\n" for line in kept), "utf-8"))
        self._curves = _curves(folder / "vdl", required=bool(visualdl)) if visualdl is not False else None

    def write(self, kind: str, step: int, **values: Any) -> None:
        """One record: what it is (`train`, `eval`, `baseline`, `health`), when, and its values.

        For VisualDL, numbers inside of values have tags like `health/layers/conv1/forward.weight/sqnr`.
        """
        record = {name: None if _is_broken(value) else value for name, value in values.items()}
        line = json.dumps({"kind": kind, "step": step, **record}, allow_nan=False)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            raise LowbitError(f"cannot write {self._path}: {error.strerror}") from error
        if self._curves:
            for tag, value in _scalars(kind, values):
                self._curves.add_scalar(tag=tag, step=step, value=value)

    def draw_weights(self, step: int, model: nn.Layer) -> None:
        """For VisualDL, the histogram of every layer's weight under `weights/<layer>`."""
        if not self._curves:
            return
        for name, layer in layers_by_name(model).items():
            values = layer.weight.astype("float32").numpy()
            if np.isfinite(values).all():  # otherwise there is no histogram, and the loss shows it
                self._curves.add_histogram(tag=f"weights/{name}", values=values, step=step, buckets=_BUCKETS)

    def close(self) -> None:
        """Flushes everything to the files."""
        if self._curves:
            self._curves.close()


def _scalars(tag: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers of nested values with their tags.

    >>> list(_scalars("train", {"loss": 0.5, "epoch": 3}))
    [('train/loss', 0.5)]
    """
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _scalars(f"{tag}/{name}", one)
    elif isinstance(value, float):
        yield tag, value


def _is_broken(value: Any) -> bool:
    """NaN and Inf are not valid JSON; they become null."""
    return isinstance(value, float) and not math.isfinite(value)


def _lines(path: Path) -> list[str]:
    """The complete lines of a log; a crash may have cut the last one."""
    if not path.is_file():
        return []
    lines = path.read_text("utf-8").split("\n")
    return [line for line in lines[:-1] if line.endswith("}")]


def _curves(folder: Path, *, required: bool) -> Any:
    """VisualDL's writer; None when it is not installed and it was not required."""
    try:
        from visualdl import LogWriter
    except ImportError:
        if not required:
            return None
        raise LowbitError(
            f"Global.use_visualdl is on, but VisualDL is not installed: {install_command('visualdl')}, "
            "or leave the key out (metrics.jsonl is written in any case)"
        ) from None
    return LogWriter(logdir=str(folder))


_WEIGHT = "forward.weight"
_DROWNED = 0.0  # dB: the error is as large as the gradient itself


class HealthLog:
    """Means over the samples of an epoch, per layer and operand, and what the weights are after it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._interval = session.config.Global.health_interval
        self._sums: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def watching(self) -> AbstractContextManager[Sight]:
        """Context around a step: measures the first and every `Global.health_interval`-th one."""
        wanted = bool(self._interval) and self._session.progress.batch % self._interval == 0
        return watching(self._session.model, wanted=wanted)

    def add(self, seen: Sight) -> None:
        """Add the statistics of a step."""
        for layer, operands in seen.items():
            for operand, health in operands.items():
                for name, value in asdict(health).items():
                    # An operand that nothing was changed of has an infinite SQNR, of which there is no mean.
                    if value is not None and math.isfinite(value):
                        self._sums[layer, operand][name].append(value)

    def record(self) -> dict[str, Any]:
        """`{layer: {operand: {sqnr: …, scale: …}}}`, rounded to what is worth keeping; empty where there is
        nothing quantized, or they are not wanted."""
        layers: dict[str, Any] = {}
        for (layer, operand), values in self._sums.items():
            means = {name: round(sum(seen) / len(seen), 5) for name, seen in values.items()}
            layers.setdefault(layer, {})[operand] = means
        if self._interval and self._session.recipe is not None:
            for name, module in layers_by_name(self._session.model).items():
                self._add_at_rest(layers, name, module)
        return layers

    def _add_at_rest(self, layers: dict[str, Any], name: str, layer: nn.Layer) -> None:
        if (name, _WEIGHT) not in self._sums and (health := weight_health(layer)) is not None:
            found = {key: value for key, value in asdict(health).items() if value is not None}
            rounded = {key: round(value, 5) for key, value in found.items() if math.isfinite(value)}
            layers.setdefault(name, {})[_WEIGHT] = rounded
        if (state := oscillation_of(layer)) is not None:
            shares = {key: round(share, 5) for key, share in state.shares().items()}
            layers.setdefault(name, {}).setdefault(_WEIGHT, {}).update(shares)
        for operand, scale in kept_scales(layer).items():
            if math.isfinite(scale):
                layers.setdefault(name, {}).setdefault(operand, {})["scale"] = float(f"{scale:.5g}")

    def warnings(self) -> list[str]:
        """A line for every layer whose gradient has an SQNR of 0 dB or less."""
        found = []
        for (layer, operand), values in self._sums.items():
            sqnr = values.get("sqnr", ())
            if operand.endswith("grad_output") and sqnr and (mean := sum(sqnr) / len(sqnr)) <= _DROWNED:
                lost = sum(values["underflowed"]) / len(values["underflowed"])
                found.append(
                    f'layer "{layer}": quantizing the gradient of {operand.split(".")[0]} adds an error as '
                    f"large as the gradient (SQNR {mean:.1f} dB, {lost:.0%} of it became 0): "
                    "a finer granularity, more bits or grid log4 for this layer may help"
                )
        return found
