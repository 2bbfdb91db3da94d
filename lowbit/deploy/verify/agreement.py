"""How often an engine gives the model's answer: classes of classifiers, outputs of other models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from lowbit.data.dataset import topk_hits
from lowbit.data.loader import Batch
from lowbit.deploy.compare import compare_logits
from lowbit.deploy.engines import LowbitEngine
from lowbit.deploy.verify.evidence import ROUNDING, Ties, count_ties, lower_bound, relative_error
from lowbit.deploy.verify.layer_differences import LOGITS, OnnxGraph, integers_read, layers_in_order
from lowbit.errors import LowbitError
from lowbit.nn import eval_mode, integer_reference

Answer = Callable[[np.ndarray], np.ndarray]  # images [N, C, H, W] to logits [N, classes]


@dataclass(frozen=True)
class Agreement:
    """How one of them did: against the labels, and against the trained model."""

    images: int
    top1: float | None  # None where the images have no labels
    top5: float | None
    agreement: float  # the fraction of images to which it gives the model's class
    max_difference: float  # of an output
    mean_difference: float
    seconds: float  # for all images
    agreement_lower: float  # what the images show about the agreement, with 95 % confidence
    relative_error: float  # RMS difference of the outputs, by what they vary from image to image
    largest_class: float  # the largest fraction of images to which it gives one class
    ties: Ties | None = None  # the images with another class than the model's


@dataclass
class _Answers:
    hits: np.ndarray = field(default_factory=lambda: np.zeros(2))
    logits: list[np.ndarray] = field(default_factory=list)
    seconds: float = 0.0


def model_answer(model: nn.Layer) -> Answer:
    """A model in evaluation mode as something that answers."""

    def answer(images: np.ndarray) -> np.ndarray:
        with eval_mode(model):
            return model(paddle.to_tensor(images)).numpy()

    return answer


class IntegerReference:
    """The model with its sums in exact integers; counts where its integers are not the model's own.

    reference = IntegerReference(model, Path("export/inference.onnx"))
    logits = reference(images)
    print(reference.unequal, "of", reference.integers)

    lowbit's runtime computes it from the exported file, where there is one: its sums are exact. Where its
    integers are the model's own, that is proven. Where they are not, floats between two layers were rounded
    otherwise (a batch norm that was folded, sums in another order): from then on, and without a file, the
    model itself computes with exact sums, which is slow.
    """

    def __init__(self, model: nn.Layer, onnx: Path | None = None) -> None:
        self._model = model
        self._layers: dict[str, nn.Layer] | None = None
        self._runtime = None if onnx is None else LowbitEngine(onnx)
        self._graph = None if onnx is None else OnnxGraph(onnx)
        self._own: tuple[np.ndarray, dict[str, np.ndarray], np.ndarray] | None = None
        self.integers = 0
        self.unequal = 0
        self.first_layer: str | None = None  # whose integers are not equal

    def model_answer(self, images: np.ndarray) -> np.ndarray:
        """What the model answers; its integers are kept for the call with the same images that follows."""
        if self._layers is None:
            self._layers = layers_in_order(self._model, images)
        with eval_mode(self._model), integers_read(self._layers) as own:
            logits = self._model(paddle.to_tensor(images)).numpy()
        self._own = (images, own, logits)
        return logits

    def __call__(self, images: np.ndarray) -> np.ndarray:
        if self._own is None or self._own[0] is not images:
            self.model_answer(images)
        (_, own, _), self._own = self._own, None
        found = self._by_runtime(images)
        if found is None or any((own[name] != found[1][name]).any() for name in self._layers):
            self._runtime = None  # it would differ on other images, too
            found = self._by_model(images)
        logits, exact = found
        for name in self._layers:
            unequal = int((own[name] != exact[name]).sum())
            self.integers += own[name].size
            self.unequal += unequal
            if unequal and self.first_layer is None:
                self.first_layer = name
        return logits

    def _by_runtime(self, images: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
        if self._runtime is None or not self._graph.inputs.keys() >= self._layers.keys():
            return None  # a layer's integers have no name in the file
        tensors = {name: self._graph.inputs[name] for name in self._layers}
        answers = self._runtime.run_with(images, list(dict.fromkeys(tensors.values())))
        exact = {
            name: answers[tensor].astype(np.int32) - self._graph.zero_point(tensor)
            for name, tensor in tensors.items()
        }
        return answers[LOGITS], exact

    def _by_model(self, images: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        with integer_reference(self._model), integers_read(self._layers) as exact:
            return self._model(paddle.to_tensor(images)).numpy(), exact


def measure_agreement(
    model: Answer,
    others: Mapping[str, Answer],
    batches: Iterable[Batch],
    *,
    on_batch: Callable[[], None] = lambda: None,
) -> tuple[Agreement, dict[str, Agreement]]:
    """What the model and each of the others answer, on the same images.

    own, others = measure_agreement(model_answer(net), {"ONNX Runtime": engine.run}, loader.epoch(0))
    """
    collected = {name: _Answers() for name in (None, *others)}
    count, labelled = 0, True
    labels: list[np.ndarray] = []
    for batch in batches:
        count, labelled = count + 1, labelled and batch.labels is not None
        if labelled:
            labels.append(batch.labels)
        for name, answers in collected.items():
            start = time.perf_counter()
            logits = (model if name is None else others[name])(batch.images)
            answers.seconds += time.perf_counter() - start
            if labelled:
                _check_labels(batch.labels, logits)
                answers.hits += topk_hits(logits, batch.labels, (1, 5))
            answers.logits.append(logits)
        on_batch()
    if not count:
        raise LowbitError("no images to verify on")
    expected = np.concatenate(collected[None].logits)
    known = np.concatenate(labels) if labelled else None
    results = {name: _agreement(answers, expected, known) for name, answers in collected.items()}
    return results.pop(None), results


def _agreement(answers: _Answers, expected: np.ndarray, labels: np.ndarray | None) -> Agreement:
    logits = np.concatenate(answers.logits)
    comparison = compare_logits(expected, logits)
    difference = np.abs(logits.astype(np.float64) - expected.astype(np.float64))
    count = len(expected)
    answered = np.where(np.isfinite(logits), logits, -np.inf).argmax(axis=1)
    return Agreement(
        images=count,
        top1=None if labels is None else float(answers.hits[0] / count),
        top5=None if labels is None else float(answers.hits[1] / count),
        agreement=comparison.top1_agreement,
        max_difference=comparison.max_absolute,
        mean_difference=float(np.where(np.isnan(difference), np.inf, difference).mean()),
        seconds=answers.seconds,
        agreement_lower=lower_bound(count, int(comparison.same_class.sum())),
        relative_error=relative_error(expected, logits, comparison.relative <= ROUNDING),
        largest_class=float(np.bincount(answered).max() / count),
        ties=count_ties(expected, logits, labels),
    )


def _check_labels(labels: np.ndarray, logits: np.ndarray) -> None:
    if (largest := int(labels.max())) >= logits.shape[1]:
        raise LowbitError(
            f"the data has a label {largest}, but the model has {logits.shape[1]} outputs (labels 0 to "
            f"{logits.shape[1] - 1}); it was trained on other classes"
        )


Answers = Callable[[Sequence[np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]]
# Float rounding moves single integers of a quantized layer by a step; a mistake moves answers by more.
_CLOSE = 0.1  # mean difference of a sample, in mean deviations of the output


@dataclass(frozen=True)
class Closeness:
    """How one of them did against the model, over all outputs."""

    samples: int
    agreement: float  # the fraction of samples whose outputs are all close to the model's
    max_difference: float
    mean_difference: float


def measure_closeness(
    model: Answers, others: Mapping[str, Answers], batches: Iterable[Sequence[np.ndarray[Any, Any]]]
) -> dict[str, Closeness]:
    """Each of the others against the model, on the same inputs.

    An output of a sample is close if its mean difference is at most a tenth of the output's mean distance
    from its mean.
    """
    sums = {name: _Sums() for name in others}
    for inputs in batches:
        expected = model(inputs)
        for name, answer in others.items():
            sums[name].add(expected, answer(inputs))
    return {name: one.result() for name, one in sums.items()}


class _Sums:
    def __init__(self) -> None:
        self._samples, self._close, self._values = 0, 0, 0
        self._largest, self._total = 0.0, 0.0

    def add(self, expected: list[np.ndarray[Any, Any]], found: list[np.ndarray[Any, Any]]) -> None:
        if [one.shape for one in expected] != [one.shape for one in found]:
            raise LowbitError(
                f"the model answers {[list(one.shape) for one in expected]}, the engine "
                f"{[list(one.shape) for one in found]}: the files are of another model; export it again"
            )
        count = len(expected[0]) if expected[0].ndim else 1
        close = np.ones(count, bool)
        for own, other in zip(expected, found, strict=True):
            own = own.astype(np.float64)
            difference = np.abs(other.astype(np.float64) - own)
            difference = np.where(np.isnan(difference), np.inf, difference)
            self._largest = max(self._largest, float(difference.max(initial=0)))
            self._total += float(difference.sum())
            self._values += difference.size
            spread = max(float(np.abs(own - own.mean()).mean()), 1e-3 * float(np.abs(own).max(initial=0)))
            if own.ndim and len(own) == count:
                close &= difference.reshape(count, -1).mean(axis=1) <= _CLOSE * spread
            else:  # one answer for the whole batch
                close &= bool(difference.mean() <= _CLOSE * spread)
        self._samples += count
        self._close += int(close.sum())

    def result(self) -> Closeness:
        return Closeness(
            samples=self._samples,
            agreement=self._close / self._samples,
            max_difference=self._largest,
            mean_difference=self._total / max(self._values, 1),
        )
