"""The integer reference: the trained network with its sums in exact integers, and what it proves.

lowbit's runtime computes it from the exported file, in a fraction of the network's own time. That it computes
the network's very integers is proven on a sample of the images, layer by layer, by the network itself. On the
others it then stands in for the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import paddle
from paddle import nn

from lowbit.data.loader import Batch
from lowbit.deploy.engines import LowbitEngine
from lowbit.deploy.verify.layer_differences import LOGITS, OnnxGraph, integers_read, layers_in_order
from lowbit.nn import eval_mode, integer_reference

_READ = 64  # images of a sample at least whose integers are compared, millions each; of the others, answers
_BIAS_ROUNDING = 1e-3  # of the largest logit: files have the last bias in whole steps of the layer's sums


class IntegerReference:
    """The network with its sums in exact integers; counts where its integers are not the network's own.

    reference = IntegerReference(model, Path("export/inference.onnx"))
    own = reference.model_answer(images)
    logits = reference(images)
    print(reference.unequal, "of", reference.integers)

    Where the runtime's integers are not the network's own, floats between two layers were rounded otherwise
    (a batch norm that was folded at export, sums in another order): from then on, and without a file, the
    network itself computes with exact sums, which is slow.
    """

    def __init__(self, model: nn.Layer, onnx: Path | None = None) -> None:
        self._model = model
        self._layers: dict[str, nn.Layer] | None = None
        self._runtime = None if onnx is None else LowbitEngine(onnx)
        self._graph = None if onnx is None else OnnxGraph(onnx)
        self._own: tuple[np.ndarray, dict[str, np.ndarray], np.ndarray] | None = None
        self._sampled: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # network's and reference's logits
        self._answer: np.ndarray | None = None  # to the images that the network was asked about last
        self._asked = 0  # batches
        self.integers = 0
        self.unequal = 0
        self.first_layer: str | None = None  # whose integers are not equal
        self.stands_in = False  # for the network, on batches that were not sampled
        self.by_network = 0  # images that the network itself has answered
        self.read = 0  # images whose integers were compared

    def prove(
        self, sample: Iterable[tuple[int, np.ndarray]], on_batch: Callable[[], None] = lambda: None
    ) -> list[int]:
        """Compare with the network on a sample, batches by their numbers: its answers, and on the first of
        them every integer of every layer.

        If all are equal, the reference stands in for the network on the batches that are asked about
        afterwards, in their order; returns the sample's numbers. Else there is no proof, and no numbers.
        """
        if self._runtime is None:
            return []
        for number, images in sample:
            if self.read < _READ:
                own = self._by_network(images)
                answer = self(images)
            else:
                with eval_mode(self._model):
                    own = self._model(paddle.to_tensor(images)).numpy()
                answer = self._runtime.run(images)
                self.by_network += len(images)
            self._sampled[number] = (own, answer)
            on_batch()
            if self._runtime is None or not _same_answers(own, answer):
                self._sampled.clear()
                self.integers = self.unequal = self.by_network = self.read = 0
                self.first_layer = None
                return []
        self.stands_in = bool(self._sampled)
        return list(self._sampled)

    def model_answer(self, images: np.ndarray) -> np.ndarray:
        """What the network answers; a call with the same images that follows gives the reference's answer."""
        number, self._asked = self._asked, self._asked + 1
        if not self.stands_in:
            return self._by_network(images)
        if number in self._sampled:
            own, self._answer = self._sampled.pop(number)
            return own
        self._answer = self._runtime.run(images)
        return self._answer

    def __call__(self, images: np.ndarray) -> np.ndarray:
        if self.stands_in:
            return self._answer
        if self._own is None or self._own[0] is not images:
            self._by_network(images)
        (_, own, _), self._own = self._own, None
        found = self._by_runtime(images)
        if found is None or any((own[name] != found[1][name]).any() for name in self._layers):
            self._runtime = None  # it would differ on other images, too
            found = self._with_exact_sums(images)
        logits, exact = found
        self.read += len(images)
        for name in self._layers:
            unequal = int((own[name] != exact[name]).sum())
            self.integers += own[name].size
            self.unequal += unequal
            if unequal and self.first_layer is None:
                self.first_layer = name
        return logits

    def _by_network(self, images: np.ndarray) -> np.ndarray:
        if self._layers is None:
            self._layers = layers_in_order(self._model, images)
        with eval_mode(self._model), integers_read(self._layers) as own:
            logits = self._model(paddle.to_tensor(images)).numpy()
        self._own = (images, own, logits)
        self.by_network += len(images)
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

    def _with_exact_sums(self, images: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        with integer_reference(self._model), integers_read(self._layers) as exact:
            return self._model(paddle.to_tensor(images)).numpy(), exact


def _same_answers(own: np.ndarray, found: np.ndarray) -> bool:
    """The same classes, from logits that differ by no more than the rounding of the last layer's bias."""
    far = np.abs(own - found).max() > _BIAS_ROUNDING * np.abs(own).max()
    return not far and bool((own.argmax(axis=1) == found.argmax(axis=1)).all())


def spread_batches(batches: Iterable[Batch], count: int, images: int) -> Iterator[tuple[int, np.ndarray]]:
    """Of `count` batches so many, with their numbers, that they have `images` images at least, if there are.

    They are spread evenly, since data sets are often sorted by class.

    >>> few = [Batch(np.zeros([10, 1]), None, 1.0) for _ in range(8)]
    >>> [number for number, _ in spread_batches(few, 8, 25)]
    [0, 3, 6]
    """
    every = 1
    for number, batch in enumerate(batches):
        if number == 0:
            every = max(1, count * len(batch.images) // max(images, 1))
        if number % every == 0:
            yield number, batch.images
