"""Running an exported model on images: classes and probabilities, or accuracy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowbit.config.transform_ops import TransformOp
from lowbit.data.dataset import topk_hits
from lowbit.data.decode import EXTENSIONS, read_image
from lowbit.data.loader import Loader
from lowbit.data.transforms import Transform, compose
from lowbit.deploy.autolog import StageTimer
from lowbit.deploy.engines.engine import Engine
from lowbit.errors import LowbitError


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of an image, best first."""

    image_name: str
    class_ids: tuple[int, ...]
    probabilities: tuple[float, ...]
    class_names: tuple[str, ...]

    def line(self) -> str:
        """The line that the ecosystem's tools parse.

        >>> Prediction("./images/demo.jpg", (8,), (0.9094,), ("tern",)).line()
        'image_name: ./images/demo.jpg, class_id: 8, prob: 0.909'
        """
        return (
            f"image_name: {self.image_name}, class_id: {self.class_ids[0]}, prob: {self.probabilities[0]:.3f}"
        )

    def ranking(self) -> list[str]:
        """One line per class for people, with names."""
        return [
            f"  {rank}. {probability:6.1%}  {name}"
            + ("" if name == str(class_id) else f" (class {class_id})")
            for rank, (class_id, probability, name) in enumerate(
                zip(self.class_ids, self.probabilities, self.class_names, strict=True), start=1
            )
        ]


def infer_images(
    engine: Engine,
    paths: str | Path | Sequence[str | Path],
    ops: Sequence[TransformOp],
    *,
    batch_size: int = 1,
    topk: int = 5,
    classes: Sequence[str] | None = None,
    timer: StageTimer | None = None,
) -> list[Prediction]:
    """Predict image files and folders of them; a `timer` collects what the benchmark report needs.

    engine = PaddleEngine("export")
    for prediction in infer_images(engine, "images", engine.description.ops):
        print(prediction.line())
    """
    if batch_size < 1 or topk < 1:
        raise LowbitError(f"batch size and topk must be at least 1, got {batch_size} and {topk}")
    names = find_images(paths)
    transform = compose(list(ops))
    timer = timer or StageTimer()
    predictions: list[Prediction] = []
    for start in range(0, len(names), batch_size):
        some = names[start : start + batch_size]
        with timer.stage("preprocess"):
            batch = prepare_images(some, transform)
        with timer.stage("inference"):
            logits = engine.run(batch)
        with timer.stage("postprocess"):
            predictions += rank_classes(logits, some, topk, classes)
        timer.images += len(some)
    return predictions


def warm_up(engine: Engine, *, batch_size: int, runs: int, image_shape: tuple[int, int, int]) -> None:
    """Run on blank images, uncounted: engines prepare kernels and memory when they first meet a shape."""
    blank = np.zeros((batch_size, *image_shape), np.float32)
    for _ in range(runs):
        engine.run(blank)


def find_images(paths: str | Path | Sequence[str | Path]) -> list[str]:
    """The files as they were named, folders replaced by the images in and below them in sorted order."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found: list[str] = []
    for name in map(os.fspath, given):
        if os.path.isdir(name):
            inside = _images_in(name)
            if not inside:
                raise LowbitError(f"no image in the folder {name}; looked for {', '.join(EXTENSIONS)}")
            found += inside
        elif os.path.exists(name):
            found.append(name)
        else:
            raise LowbitError(f"no image or folder {name}")
    if not found:
        raise LowbitError("no image was given")
    return found


def _images_in(folder: str) -> list[str]:
    # os.path.join and not Path: the printed name begins with what the user wrote, "./" included.
    return sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder, followlinks=False)
        for name in names
        if name.lower().endswith(EXTENSIONS) and not name.startswith(".")
    )


def prepare_images(names: Sequence[str], transform: Transform) -> np.ndarray:
    """Image files as a batch [N, C, H, W]."""
    # Every image has its own fresh generator: an operation that draws must not depend on the order of files.
    images = [transform(read_image(name, transform.at_least), np.random.default_rng(0)) for name in names]
    for name, image in zip(names, images, strict=True):
        if image.shape != images[0].shape:
            raise LowbitError(
                f"{name} becomes {list(image.shape)} and {names[0]} {list(images[0].shape)}: the images of a "
                "batch must have one size; add CropImage, or ResizeImage with size, to the transform_ops"
            )
    return np.stack(images)


def rank_classes(
    logits: np.ndarray, names: Sequence[str], topk: int, classes: Sequence[str] | None
) -> list[Prediction]:
    """Softmax and the `topk` best classes of each row; equal probabilities keep the order of the classes."""
    if classes is not None and len(classes) != logits.shape[1]:
        raise LowbitError(
            f"the model has {logits.shape[1]} outputs, but there are {len(classes)} class names"
        )
    broken = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if broken.size:
        raise LowbitError(f"the model answers NaN or Inf for {names[broken[0]]}; its weights are broken")
    probabilities = softmax(logits)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :topk]
    return [
        Prediction(
            image_name=name,
            class_ids=tuple(int(i) for i in ids),
            probabilities=tuple(float(row[i]) for i in ids),
            class_names=tuple(str(i) if classes is None else classes[i] for i in ids),
        )
        for name, ids, row in zip(names, order, probabilities, strict=True)
    ]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of rows of logits, in float64 and without overflow.

    >>> softmax(np.array([[1000.0, 1000.0]])).tolist()
    [[0.5, 0.5]]
    """
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    powers = np.exp(shifted)
    return powers / powers.sum(axis=1, keepdims=True)


# Accuracy of an exported model.


def evaluate_engine(engine: Engine, loader: Loader, topk: tuple[int, ...] = (1, 5)) -> dict[str, float]:
    """Fractions `top1`, `top5` of the images whose label is among the best answers, and how many `samples`.

    >>> evaluate_engine(PaddleEngine("export"), loader)  # doctest: +SKIP
    {'top1': 0.564, 'top5': 0.79, 'samples': 50000}
    """
    hits = np.zeros(len(topk))
    samples = 0
    for batch in loader.epoch(0):
        if batch.weight == 0:  # a stand-in: the images of this batch are other processes'
            continue
        logits = engine.run(batch.images)
        largest = int(batch.labels.max())
        if largest >= logits.shape[1]:
            raise LowbitError(
                f"the data has a label {largest}, but the model has {logits.shape[1]} outputs (labels 0 to "
                f"{logits.shape[1] - 1}); it was trained on other classes"
            )
        if not np.isfinite(logits).all():
            raise LowbitError(
                "the exported model answers NaN or Inf; its weights are broken: export it again"
            )
        hits += topk_hits(logits, batch.labels, topk)
        samples += len(batch.labels)
    if samples == 0:
        raise LowbitError("no images to evaluate on")
    return {f"top{k}": float(count / samples) for k, count in zip(topk, hits, strict=True)} | {
        "samples": samples
    }
