"""The integer reference: the trained network with its sums in exact integers, and what it proves.

lowbit's runtime computes it from the exported file, in a fraction of the network's own time. On a sample of
the images, the network itself computes, too, and every integer of every layer is compared. If all are equal,
the reference stands in for the network on the other images.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paddle
from paddle import nn

from lowbit.deploy.engines import LowbitEngine
from lowbit.deploy.verify.layer_differences import LOGITS, OnnxGraph, integers_read, layers_in_order
from lowbit.nn import eval_mode, integer_reference

SAMPLE = 64  # images at least, if there are so many: millions of integers each
_BIAS_ROUNDING = 1e-3  # of the largest logit: files have the last bias in whole steps of the layer's sums


@dataclass(frozen=True)
class Sample:
    """The first `rows` images of every `every`-th batch: spread, since data sets are often sorted by class.

    >>> sample = Sample.spread(batches=20, images=64)
    >>> sample.rows_of(0), sample.rows_of(1), Sample.spread(batches=640, images=64).rows_of(1)
    (4, 4, 0)
    """

    every: int
    rows: int

    @classmethod
    def spread(cls, batches: int, images: int) -> Sample:
        """At least so many images, if there are, over all batches."""
        every = max(1, batches // images)
        return cls(every, -(-images // max(1, -(-batches // every))))

    def rows_of(self, number: int) -> int:
        """How many images of the batch with this number."""
        return self.rows if number % self.every == 0 else 0


class IntegersDifferError(Exception):
    """An integer of the reference is not the network's own, so that it cannot stand in for the network."""


class IntegerReference:
    """The network's and the reference's answers to batches in their order.

    reference = IntegerReference(model, sample, Path("export/inference.onnx"))
    for batch in batches:
        own = reference.model_answer(batch)
        logits = reference(batch[:rows])     # of the sample
    print(reference.unequal, "of", reference.integers)

    With a file, lowbit's runtime answers in place of the network; where an integer of the sample differs,
    `model_answer` raises IntegersDifferError: floats between two layers were rounded otherwise (a batch norm
    that was folded at export, sums in another order). Without a file, the network answers all images and,
    with exact sums, once more those of the sample, which is slow.
    """

    def __init__(self, model: nn.Layer, sample: Sample, onnx: Path | None = None) -> None:
        self._model, self._sample = model, sample
        self._layers: dict[str, nn.Layer] | None = None
        self._runtime = None if onnx is None else LowbitEngine(onnx)
        self._graph = None if onnx is None else OnnxGraph(onnx)
        self._answer = np.zeros((0, 0), np.float32)  # the reference's, to the last batch's sample
        self._asked = 0  # batches
        self.integers = 0
        self.unequal = 0
        self.first_layer: str | None = None  # whose integers are not equal
        self.by_network = 0  # images that the network itself has answered
        self.read = 0  # images whose integers were compared

    @property
    def stands_in(self) -> bool:
        """Whether it answers for the network where that is not in the sample."""
        return self._runtime is not None

    def model_answer(self, images: np.ndarray) -> np.ndarray:
        """What the network answers to the next batch."""
        rows = self._sample.rows_of(self._asked)
        self._asked += 1
        sampled, others = images[:rows], images[rows:]
        answers = [self._compare(sampled)] if len(sampled) else []
        if len(others) and self._runtime is not None:
            answers.append(self._runtime.run(others))
        elif len(others):
            with eval_mode(self._model):
                answers.append(self._model(paddle.to_tensor(others)).numpy())
            self.by_network += len(others)
        return np.concatenate(answers)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """The reference's answer to those images of the last batch that are in the sample."""
        return self._answer

    def _compare(self, images: np.ndarray) -> np.ndarray:
        """What the network itself answers; its integers are compared with the reference's."""
        if self._layers is None:
            self._layers = layers_in_order(self._model, images)
        with eval_mode(self._model), integers_read(self._layers) as own:
            logits = self._model(paddle.to_tensor(images)).numpy()
        exact_by = self._with_exact_sums if self._runtime is None else self._by_runtime
        self._answer, exact = exact_by(images)
        self.by_network += len(images)
        self.read += len(images)
        for name in self._layers:
            unequal = int((own[name] != exact[name]).sum())
            self.integers += own[name].size
            self.unequal += unequal
            if unequal and self.first_layer is None:
                self.first_layer = name
        if self.stands_in and (self.unequal or not _same_answers(logits, self._answer)):
            raise IntegersDifferError
        return logits

    def _by_runtime(self, images: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        if not self._graph.inputs.keys() >= self._layers.keys():
            raise IntegersDifferError  # a layer's integers have no name in the file
        tensors = {name: self._graph.inputs[name] for name in self._layers}
        answers = self._runtime.run_with(images, list(dict.fromkeys(tensors.values())))
        exact = {
            name: answers[tensor].astype(np.int32) - self._graph.zero_point(tensor)
            for name, tensor in tensors.items()
        }
        return answers[LOGITS], exact

    def _with_exact_sums(self, images: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        with integer_reference(self._model), integers_read(self._layers) as exact:
            return self._model(paddle.to_tensor(images)).numpy(), exact


def _same_answers(own: np.ndarray, found: np.ndarray) -> bool:
    """The same classes, from logits that differ by no more than the rounding of the last layer's bias."""
    far = np.abs(own - found).max() > _BIAS_ROUNDING * np.abs(own).max()
    return not far and bool((own.argmax(axis=1) == found.argmax(axis=1)).all())
