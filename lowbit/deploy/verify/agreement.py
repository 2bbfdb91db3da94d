"""How often an engine gives the model's answer: classes of classifiers, outputs of other models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
from paddle import nn

from lowbit.data.dataset import topk_hits
from lowbit.data.loader import Batch
from lowbit.deploy.compare import compare_logits
from lowbit.deploy.verify.evidence import ROUNDING, Ties, count_ties, lower_bound, relative_error
from lowbit.errors import LowbitError
from lowbit.nn import eval_mode

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
    rows: list[int] = field(default_factory=list)  # of each batch
    seconds: float = 0.0


def model_answer(model: nn.Layer) -> Answer:
    """A model in evaluation mode as something that answers."""

    def answer(images: np.ndarray) -> np.ndarray:
        with eval_mode(model):
            return model(paddle.to_tensor(images)).numpy()

    return answer


def measure_agreement(
    model: Answer,
    others: Mapping[str, Answer],
    batches: Iterable[Batch],
    *,
    only: Mapping[str, Callable[[int], int]] | None = None,
    on_batch: Callable[[], None] = lambda: None,
) -> tuple[Agreement, dict[str, Agreement]]:
    """What the model and each of the others answer, on the same images.

    `only` says, where one of the others does not get all images, how many of the batch with a number it gets.

    own, others = measure_agreement(model_answer(net), {"ONNX Runtime": engine.run}, loader.epoch(0))
    """
    only = only or {}
    collected = {name: _Answers() for name in (None, *others)}
    labelled = True
    labels: list[np.ndarray] = []
    for number, batch in enumerate(batches):
        labelled = labelled and batch.labels is not None
        if labelled:
            labels.append(batch.labels)
        for name, answers in collected.items():
            rows = min(len(batch.images), only[name](number)) if name in only else len(batch.images)
            answers.rows.append(rows)
            if not rows:
                continue
            start = time.perf_counter()
            logits = (model if name is None else others[name])(batch.images[:rows])
            answers.seconds += time.perf_counter() - start
            if labelled:
                _check_labels(batch.labels, logits)
                answers.hits += topk_hits(logits, batch.labels[:rows], (1, 5))
            answers.logits.append(logits)
        on_batch()
    if not collected[None].rows:
        raise LowbitError("no images to verify on")
    own = collected[None].logits
    known = labels if labelled else None
    results = {name: _agreement(answers, own, known) for name, answers in collected.items()}
    return results.pop(None), results


def _agreement(answers: _Answers, own: list[np.ndarray], known: list[np.ndarray] | None) -> Agreement:
    """Of the model's own logits and labels, those of the images that were answered."""
    expected = _first_rows(own, answers.rows)
    labels = None if known is None else _first_rows(known, answers.rows)
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


def _first_rows(batches: list[np.ndarray], rows: list[int]) -> np.ndarray:
    return np.concatenate([batch[:count] for batch, count in zip(batches, rows, strict=True)])


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
