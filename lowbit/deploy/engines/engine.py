"""What every inference engine offers: images in, logits out, and how it was set up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lowbit.errors import LowbitError


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How an engine was set up, in the words of the benchmark report."""

    device: str
    threads: int
    onednn: bool = False
    optimize: bool = True
    memory_optim: bool = False
    tensorrt: bool = False
    precision: str = "fp32"


class Engine(Protocol):
    """An exported model, ready to run."""

    name: str  # of the program and its version, such as "Paddle Inference 3.3.1"
    options: EngineOptions
    image_shape: tuple[int, int, int] | None  # (C, H, W) that the model takes, where its folder says so

    def run(self, batch: np.ndarray) -> np.ndarray:
        """Logits [N, classes] of float32 images [N, C, H, W]; any N from 1."""
        ...

    def run_all(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs of a model of any inputs and outputs, given all inputs in their order."""
        ...


class LayeredEngine(Engine, Protocol):
    """An engine that also tells what it computed on the way."""

    def run_with(self, batch: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The logits, and the tensors of these names, by name."""
        ...


def check_batch(batch: np.ndarray, image_shape: tuple[int, int, int] | None) -> np.ndarray:
    """The batch in the memory layout that engines copy from, or an error that says what does not fit."""
    if batch.dtype != np.float32:
        raise LowbitError(
            f"the engine takes float32 images, got {batch.dtype}; NormalizeImage makes them float32"
        )
    if batch.ndim != 4 or batch.shape[0] == 0:
        raise LowbitError(
            f"the engine takes a batch [N, C, H, W] with N of at least 1, got {list(batch.shape)}"
        )
    if image_shape is not None and batch.shape[1:] != image_shape:
        raise LowbitError(
            f"the model takes images of {format_shape(image_shape)} (channels x height x width), "
            f"got {format_shape(batch.shape[1:])}; check the transform_ops in its inference.yml"
        )
    return np.ascontiguousarray(batch)


def format_shape(shape: tuple[int, ...]) -> str:
    """
    >>> format_shape((3, 224, 224))
    '3x224x224'
    """
    return "x".join(map(str, shape))
