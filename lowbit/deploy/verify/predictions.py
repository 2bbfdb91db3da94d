"""Which class the model and each engine gave to each image, for the confusion matrix in the report."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
from PIL import Image

from lowbit.data.dataset import Dataset
from lowbit.data.loader import Batch
from lowbit.deploy.verify.agreement import Answer

MODEL, FP32 = "model", "fp32"  # names of the trained model and of the one it was made of
_MOST_IMAGES = 24  # that are written down with a picture
_PICTURE = 64  # pixels of its longer side


class Predictions:
    """Records labels and predicted classes while images go through the model and the engines.

    predictions = Predictions()
    answer = predictions.record("model", model_answer(net))
    for batch in predictions.labelled(loader.epoch(0)):
        answer(batch.images)
    predictions.to_dict(loader.dataset, loader.sampler.order(0))
    """

    def __init__(self) -> None:
        self._labels: list[np.ndarray] = []
        self._classes: dict[str, list[np.ndarray]] = {}

    def record(self, name: str, answer: Answer) -> Answer:
        """The same answer; the classes that it gives are recorded under `name`."""
        classes = self._classes.setdefault(name, [])

        def recorded(images: np.ndarray) -> np.ndarray:
            logits = answer(images)
            classes.append(np.where(np.isfinite(logits), logits, -np.inf).argmax(axis=1))
            return logits

        return recorded

    def labelled(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; their labels are recorded, if they have any."""
        for batch in batches:
            if batch.labels is not None:
                self._labels.append(batch.labels)
            yield batch

    def to_dict(self, dataset: Dataset, order: np.ndarray) -> dict[str, Any]:
        """Plain values for `verify.json`, of labelled images; `order[i]` is the index in the data set of the
        i-th image.

        `confusion[name][label][predicted]` is a number of images; an engine that got some of the images only
        has none. `differing` has the images to which fp32
        and the quantized model give different classes; None where fp32 is not known.
        """
        labels = np.concatenate(self._labels)
        classes = {name: np.concatenate(found) for name, found in self._classes.items()}
        classes = {name: found for name, found in classes.items() if len(found) == len(labels)}
        differing = None
        if FP32 in classes:
            differing = _differing(labels, classes, dataset, order)
        return {
            "classes": list(dataset.classes),
            "confusion": {name: _confusion(labels, found) for name, found in classes.items()},
            "differing": differing,
        }


def _confusion(labels: np.ndarray, predicted: np.ndarray) -> dict[str, dict[str, int]]:
    """Counts by label and predicted class, without zeros.

    >>> _confusion(np.array([0, 0, 1]), np.array([0, 2, 1]))
    {'0': {'0': 1, '2': 1}, '1': {'1': 1}}
    """
    pairs, counts = np.unique(np.stack([labels, predicted], axis=1), axis=0, return_counts=True)
    found: dict[str, dict[str, int]] = {}
    for (label, one), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        found.setdefault(str(label), {})[str(one)] = count
    return found


def _differing(
    labels: np.ndarray, classes: dict[str, np.ndarray], dataset: Dataset, order: np.ndarray
) -> dict[str, Any]:
    fp32, model = classes[FP32], classes[MODEL]
    lost, gained = (fp32 == labels) & (model != labels), (fp32 != labels) & (model == labels)
    neither = (fp32 != model) & (fp32 != labels) & (model != labels)
    ordered = np.concatenate([np.flatnonzero(mask) for mask in (lost, gained, neither)])
    images = [
        {
            "name": "/".join(PurePath(dataset.name(int(order[index]))).parts[-2:]),
            "label": int(labels[index]),
            "classes": {name: int(found[index]) for name, found in classes.items()},
            "jpeg": _thumbnail(dataset.image(int(order[index]), (_PICTURE, _PICTURE))),
        }
        for index in ordered[:_MOST_IMAGES]
    ]
    counts = {"lost": int(lost.sum()), "gained": int(gained.sum()), "both_wrong": int(neither.sum())}
    return counts | {"images": images}


def _thumbnail(image: np.ndarray) -> str:
    """A small JPEG in base64 of an image, HWC uint8."""
    picture = Image.fromarray(image)
    picture.thumbnail((_PICTURE, _PICTURE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return base64.b64encode(file.getvalue()).decode("ascii")
