"""verify(): does what is deployed compute what was trained, and is it faster?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import paddle
from paddle import nn

from lowbit.accel.convolutions import fast_convolutions
from lowbit.data.loader import Batch
from lowbit.deploy.verify.agreement import Agreement, measure_agreement, model_answer
from lowbit.deploy.verify.candidates import Candidate
from lowbit.deploy.verify.evidence import RELATIVE_ERROR, Evidence, images_needed, weigh
from lowbit.deploy.verify.integer_reference import IntegerReference, spread_batches
from lowbit.deploy.verify.latency import Latency, compare_latency
from lowbit.deploy.verify.layer_differences import LayerDifference, OnnxGraph, compare_layers, guilty_layers
from lowbit.deploy.verify.predictions import FP32, MODEL, Predictions
from lowbit.errors import LowbitError
from lowbit.kernels import why_missing
from lowbit.nn import has_quantized_layers

_LAYER_IMAGES = 64  # whose integers are compared layer by layer: millions of them already
_LATENCY_BATCHES = (1, 16)
# Paddle's simulated form computes as the network does, as slowly: it gets the images that the network gets.
_AS_SLOW_AS_THE_NETWORK = ("paddle",)


class Watch(Protocol):
    """Where the progress is shown."""

    def begin(self, title: str, total: int) -> None: ...

    def advance(self) -> None: ...


class Unwatched:
    """Shows no progress."""

    def begin(self, title: str, total: int) -> None:
        pass

    def advance(self) -> None:
        pass


class Images(Protocol):
    """What is verified on: batches, the same each time. Their labels may be None."""

    def __len__(self) -> int: ...

    def epoch(self, epoch: int) -> Iterator[Batch]: ...


@dataclass
class EngineReport:
    """What was found about one engine."""

    key: str
    name: str
    threads: int
    result: Agreement
    layers: list[LayerDifference] | None = None  # None where they were not looked at
    latency: list[Latency] = field(default_factory=list)
    note: str | None = None

    @property
    def guilty(self) -> list[str]:
        """The layers that compute something else; empty where none does or nobody looked."""
        return guilty_layers(self.layers or [])


@dataclass
class Report:
    """What was found about a trained model and the engines that run it."""

    limit: float
    model: Agreement
    engines: list[EngineReport]
    fp32: Agreement | None = None  # of the model that the quantized one was made of
    integers: Agreement | None = None  # of the integer reference; None for a model that is not quantized
    integers_compared: int = 0
    integers_unequal: int = 0
    integers_first_layer: str | None = None
    by_network: int | None = None  # images that the network itself answered; None: all of them
    integers_images: int = 0  # on which integers were compared
    predictions: Predictions = field(default_factory=Predictions)

    @property
    def evidence(self) -> Evidence:
        """Whether the agreement proves something on these images."""
        return weigh(self.model.images, self.model.largest_class, self.limit)

    @property
    def failing(self) -> list[EngineReport]:
        """The engines that agree with the trained model on too few images, or, where agreement proves
        little, whose outputs are too far from the model's."""
        return [engine for engine in self.engines if self._fails(engine)]

    def _fails(self, engine: EngineReport) -> bool:
        result = engine.result
        if not self.evidence.conclusive and result.relative_error > RELATIVE_ERROR:
            return True
        return result.agreement < self.limit and not self.by_chance(engine)

    def by_chance(self, engine: EngineReport) -> bool:
        """Whether an agreement below the limit is one of near-ties: no layer departs, both are right equally
        often, and on all but the images that the limit allows the model itself hardly prefers its class."""
        ties = engine.result.ties
        return (
            ties is not None
            and engine.layers is not None
            and not engine.guilty
            and ties.accuracy_is_equal
            and ties.noise_is_small
            and ties.errors <= (1 - self.limit) * engine.result.images
        )

    def verdict(self, engine: EngineReport) -> str:
        """One line: passed or failed, and by which figures."""
        result, word = engine.result, "FAILED" if self._fails(engine) else "passed"
        line = (
            f"{word}: {engine.name} gives the trained model's class on {100 * result.agreement:.2f} % of "
            f"{'the' if result.images == self.model.images else result.images} images "
            f"(limit {100 * self.limit:.2f} %)"
        )
        if result.agreement < self.limit and self.by_chance(engine) and result.ties is not None:
            ties = result.ties
            line += (
                f"; {ties.near_ties} of the {ties.differing} that differ are near-ties (the model's own "
                f"margin there is {ties.margin:.2g}, usually {ties.usual_margin:.2g}), no layer departs, and "
                f"top-1 is equal within chance ({ties.lost} lost, {ties.gained} gained)"
            )
        if self.evidence.conclusive:
            return line
        return (
            f"{line}; relative error of its outputs {100 * result.relative_error:.2g} % "
            f"(limit {100 * RELATIVE_ERROR:g} %)"
        )


def verify(
    model: nn.Layer,
    candidates: Sequence[Candidate],
    loader: Images,
    *,
    watch: Watch | None = None,
    baseline: nn.Layer | None = None,
    limit: float = 0.99,
    layers: bool = False,
    latency: bool = True,
) -> Report:
    """The trained model (in evaluation: fake-quantized) against each engine, on all images of the loader.

    `limit` is the fraction of images on which an engine must give the model's class. Where that proves little
    (`Report.evidence`), its outputs must be near the model's, too. `layers` compares every engine layer by
    layer, and not only those that fail.

    Of a quantized model, the model itself answers a sample of the images, as many as show the limit. If all
    integers of all layers are the integer reference's there, that stands in for the model on the others.

    report = verify(model, open_candidates(["onnxruntime"], folder), loader)
    """
    watch = watch or Unwatched()
    if not 0 <= limit <= 1:
        raise LowbitError(f"the limit is a fraction of the images, from 0 to 1; got {limit}")
    quantized = has_quantized_layers(model)
    predictions = Predictions()
    others = {one.key: predictions.record(one.key, one.engine.run) for one in candidates}
    file = next((one.onnx for one in candidates if one.onnx is not None), None)
    runs = file is not None and why_missing() is None
    reference = IntegerReference(model, file if runs else None) if quantized else None
    if reference is not None:
        others["integers"] = reference
    if baseline is not None:
        others[FP32] = predictions.record(FP32, model_answer(baseline))
    with fast_convolutions(wanted=paddle.device.get_device() == "cpu"):
        sampled = _prove(reference, loader, limit, watch) if runs and reference is not None else []
        watch.begin("verify", len(loader))
        own, results = measure_agreement(
            predictions.record(MODEL, model_answer(model) if reference is None else reference.model_answer),
            others,
            predictions.labelled(loader.epoch(0)),
            only=dict.fromkeys(_AS_SLOW_AS_THE_NETWORK, sampled) if sampled else {},
            on_batch=watch.advance,
        )
    report = Report(
        limit=limit,
        model=own,
        engines=[_engine_report(candidate, results[candidate.key]) for candidate in candidates],
        fp32=results.get(FP32),
        integers=results.get("integers"),
        predictions=predictions,
    )
    if reference is not None:
        report.integers_compared, report.integers_unequal = reference.integers, reference.unequal
        report.integers_first_layer = reference.first_layer
        report.integers_images = reference.read
        if reference.stands_in and reference.by_network < own.images:
            report.by_network = reference.by_network
    for candidate, engine in zip(candidates, report.engines, strict=True):
        if quantized and candidate.onnx is not None and (layers or engine in report.failing):
            engine.layers = _look_at_layers(model, candidate, loader, watch)
    if latency:
        _measure_latency(candidates, report, loader, watch)
    return report


def _prove(reference: IntegerReference, loader: Images, limit: float, watch: Watch) -> list[int]:
    """Let the network compute a sample of the images, enough to show the limit; the batches' numbers."""
    count, needed = len(loader), images_needed(limit)
    first = next(iter(loader.epoch(0)), None)
    if needed is None or first is None:  # no number of images is enough
        return []
    every = max(1, count * len(first.images) // max(needed, 1))
    watch.begin("the network itself, on a sample", -(-count // every))
    return reference.prove(spread_batches(loader.epoch(0), count, needed), on_batch=watch.advance)


def _engine_report(candidate: Candidate, result: Agreement) -> EngineReport:
    engine = candidate.engine
    return EngineReport(
        key=candidate.key,
        name=engine.name,
        threads=engine.options.threads,
        result=result,
        note=getattr(engine, "note", None),
    )


def _look_at_layers(
    model: nn.Layer, candidate: Candidate, loader: Images, watch: Watch
) -> list[LayerDifference]:
    batches = list(_first_images(loader, _LAYER_IMAGES))
    watch.begin(f"layers in {candidate.engine.name}", len(batches))
    graph = OnnxGraph(candidate.onnx)
    return compare_layers(model, candidate.engine, graph, batches, on_batch=watch.advance)


def _measure_latency(candidates: Sequence[Candidate], report: Report, loader: Images, watch: Watch) -> None:
    pairs = [pair for pair in zip(candidates, report.engines, strict=True) if pair[0].fp32 is not None]
    watch.begin("latency", len(pairs) * len(_LATENCY_BATCHES))
    some = next(_first_images(loader, max(_LATENCY_BATCHES)))
    for candidate, engine in pairs:
        for size in _LATENCY_BATCHES:
            images = np.concatenate([some] * -(-size // len(some)))[:size]
            engine.latency.append(compare_latency(candidate.fp32, candidate.engine, images))
            watch.advance()


def _first_images(loader: Images, count: int) -> Iterator[np.ndarray]:
    """The loader's batches until there are `count` images."""
    batches = loader.epoch(0)
    for batch in batches:
        yield batch.images[:count]
        count -= len(batch.images)
        if count <= 0:
            break
