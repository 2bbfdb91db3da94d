"""verify(): does what is deployed compute what was trained, and is it faster?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import paddle
from paddle import nn

from lowbit.accel.convolutions import fast_convolutions
from lowbit.data.loader import Batch
from lowbit.deploy.verify.agreement import Agreement, Answer, measure_agreement, model_answer
from lowbit.deploy.verify.candidates import Candidate
from lowbit.deploy.verify.evidence import RELATIVE_ERROR, Evidence, weigh
from lowbit.deploy.verify.integer_reference import SAMPLE, IntegerReference, IntegersDifferError, Sample
from lowbit.deploy.verify.latency import Latency, compare_latency
from lowbit.deploy.verify.layer_differences import (
    LayerDifference,
    OnnxGraph,
    compare_layers,
    first_wrong_layers,
)
from lowbit.deploy.verify.predictions import FP32, MODEL, Predictions
from lowbit.errors import LowbitError
from lowbit.kernels import why_missing
from lowbit.nn import has_quantized_layers

_LAYER_IMAGES = 64  # whose integers are compared layer by layer: millions of them already
_LATENCY_BATCHES = (1, 16)
# Paddle's simulated form computes as the network does, as slowly: it gets the sample that the network gets.
_AS_SLOW_AS_THE_NETWORK = ("paddle",)


class ProgressBar(Protocol):
    """Where the progress is shown."""

    def begin(self, title: str, total: int) -> None: ...

    def advance(self) -> None: ...


class NoProgressBar:
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
    def wrong_layers(self) -> list[str]:
        """The layers that compute something else; empty where none does or none was compared."""
        return first_wrong_layers(self.layers or [])


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
        return self.evidence_on(self.model)

    def evidence_on(self, result: Agreement) -> Evidence:
        """The same on the images that an engine got, which may be a sample of all."""
        return weigh(result.images, self.model.largest_class, self.limit)

    @property
    def failing(self) -> list[EngineReport]:
        """The engines that agree with the trained model on too few images, or, where agreement proves
        little, whose outputs are too far from the model's."""
        return [engine for engine in self.engines if self._fails(engine)]

    def _fails(self, engine: EngineReport) -> bool:
        result = engine.result
        if not self.evidence_on(result).conclusive and result.relative_error > RELATIVE_ERROR:
            return True
        return result.agreement < self.limit and not self.by_chance(engine)

    def by_chance(self, engine: EngineReport) -> bool:
        """Whether an agreement below the limit is one of near-ties: no layer is wrong, both are right equally
        often, and on all but the images that the limit allows the model itself hardly prefers its class."""
        ties = engine.result.ties
        return (
            ties is not None
            and engine.layers is not None
            and not engine.wrong_layers
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
                f"margin there is {ties.margin:.2g}, usually {ties.usual_margin:.2g}), no layer is wrong, "
                f"and top-1 is equal within chance ({ties.lost} lost, {ties.gained} gained)"
            )
        if self.evidence_on(result).conclusive:
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
    progress: ProgressBar | None = None,
    baseline: Answer | None = None,
    limit: float = 0.99,
    layers: bool = False,
    latency: bool = True,
) -> Report:
    """The trained model (in evaluation: fake-quantized) against each engine, on all images of the loader.

    `limit` is the fraction of images on which an engine must give the model's class. Where that proves little
    (`Report.evidence_on`), its outputs must be near the model's, too. `layers` compares every engine layer by
    layer, and not only those that fail. `baseline` answers for the fp32 model, for its accuracy.

    Of a quantized model, the model itself answers a sample of the images. If all integers of all layers are
    the integer reference's there, that stands in for the model on the others; else the model answers all.
    Paddle's simulated form, which is as slow, gets the sample, unless it is the only engine. With a limit of
    100 %, both get all images.

    report = verify(model, open_candidates(["onnxruntime"], folder), loader)
    """
    progress = progress or NoProgressBar()
    if not 0 <= limit <= 1:
        raise LowbitError(f"the limit is a fraction of the images, from 0 to 1; got {limit}")
    measured = _Measured(model, candidates, loader, progress, baseline, sampled=limit < 1)
    report = measured.report(limit)
    for candidate, engine in zip(candidates, report.engines, strict=True):
        if report.integers is not None and candidate.onnx and (layers or engine in report.failing):
            engine.layers = _look_at_layers(model, candidate, loader, progress)
    if latency:
        _measure_latency(candidates, report, loader, progress)
    return report


class _Measured:
    """The answers of the model, the engines, the integer reference and the fp32 model to all images."""

    def __init__(
        self,
        model: nn.Layer,
        candidates: Sequence[Candidate],
        loader: Images,
        progress: ProgressBar,
        baseline: Answer | None,
        sampled: bool,
    ) -> None:
        self._model, self._candidates, self._loader, self._progress = model, candidates, loader, progress
        self._baseline, self._sampled = baseline, sampled
        self._sample = Sample.spread(len(loader), SAMPLE)
        file = next((one.onnx for one in candidates if one.onnx is not None), None)
        stands_in = sampled and has_quantized_layers(model) and why_missing() is None
        with fast_convolutions(wanted=paddle.device.get_device() == "cpu"):
            try:
                self._measure(file if stands_in else None)
            except IntegersDifferError:  # from the start: what has been answered may be wrong
                self._measure(None)

    def _measure(self, file: Path | None) -> None:
        self.predictions = predictions = Predictions()
        others = {one.key: predictions.record(one.key, one.engine.run) for one in self._candidates}
        own, only = model_answer(self._model), {}
        self.reference: IntegerReference | None = None
        if has_quantized_layers(self._model):
            self.reference = IntegerReference(self._model, self._sample, file)
            own, others["integers"] = self.reference.model_answer, self.reference
            only = {"integers": self._sample.rows_of}
            if self._sampled and len(self._candidates) > 1:
                only |= dict.fromkeys(_AS_SLOW_AS_THE_NETWORK, self._sample.rows_of)
        if self._baseline is not None:
            others[FP32] = predictions.record(FP32, self._baseline)
        self._progress.begin("verify", len(self._loader))
        self.own, self.results = measure_agreement(
            predictions.record(MODEL, own),
            others,
            predictions.labelled(self._loader.epoch(0)),
            only=only,
            on_batch=self._progress.advance,
        )

    def report(self, limit: float) -> Report:
        report = Report(
            limit=limit,
            model=self.own,
            engines=[_engine_report(one, self.results[one.key]) for one in self._candidates],
            fp32=self.results.get(FP32),
            integers=self.results.get("integers"),
            predictions=self.predictions,
        )
        if (reference := self.reference) is not None:
            report.integers_compared, report.integers_unequal = reference.integers, reference.unequal
            report.integers_first_layer = reference.first_layer
            report.integers_images = reference.read
            if reference.by_network < self.own.images:
                report.by_network = reference.by_network
        return report


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
    model: nn.Layer, candidate: Candidate, loader: Images, progress: ProgressBar
) -> list[LayerDifference]:
    batches = list(_first_images(loader, _LAYER_IMAGES))
    progress.begin(f"layers in {candidate.engine.name}", len(batches))
    graph = OnnxGraph(candidate.onnx)
    return compare_layers(model, candidate.engine, graph, batches, on_batch=progress.advance)


def _measure_latency(
    candidates: Sequence[Candidate], report: Report, loader: Images, progress: ProgressBar
) -> None:
    pairs = [pair for pair in zip(candidates, report.engines, strict=True) if pair[0].fp32 is not None]
    progress.begin("latency", len(pairs) * len(_LATENCY_BATCHES))
    some = next(_first_images(loader, max(_LATENCY_BATCHES)))
    for candidate, engine in pairs:
        for size in _LATENCY_BATCHES:
            images = np.concatenate([some] * -(-size // len(some)))[:size]
            engine.latency.append(compare_latency(candidate.fp32, candidate.engine, images))
            progress.advance()


def _first_images(loader: Images, count: int) -> Iterator[np.ndarray]:
    """The loader's batches until there are `count` images."""
    batches = loader.epoch(0)
    for batch in batches:
        yield batch.images[:count]
        count -= len(batch.images)
        if count <= 0:
            break
