"""How far an exported model's answers are from those of the model it came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import paddle
from paddle import nn

from lowbit.deploy.engines.engine import Engine
from lowbit.errors import LowbitError
from lowbit.nn import eval_mode


@dataclass(frozen=True)
class Comparison:
    """Differences of the logits, one entry per image."""

    absolute: np.ndarray  # largest difference of an image's logits; Inf where one side is not a number
    relative: np.ndarray  # the same divided by the largest logit of the trained model
    same_class: np.ndarray  # whether both name the same class first

    @property
    def count(self) -> int:
        return len(self.absolute)

    @property
    def max_absolute(self) -> float:
        return float(self.absolute.max())

    @property
    def max_relative(self) -> float:
        return float(self.relative.max())

    @property
    def top1_agreement(self) -> float:
        """The fraction of images to which both give the same class."""
        return float(self.same_class.mean())

    def within(self, tolerance: float) -> bool:
        """Whether no logit differs by more than this fraction of its image's largest."""
        return self.max_relative <= tolerance

    def __str__(self) -> str:
        return (
            f"{self.count} images: largest difference {self.max_absolute:.3g} "
            f"({self.max_relative:.2g} of the largest logit), same class for {self.top1_agreement:.1%}"
        )


def compare_outputs(
    model: nn.Layer, engine: Engine, images: np.ndarray, *, batch_size: int = 32
) -> Comparison:
    """Give both the same float32 images [N, C, H, W] and compare; the model runs in evaluation mode.

    print(compare_outputs(net, PaddleEngine("export"), images))
    """
    if len(images) == 0 or batch_size < 1:
        raise LowbitError("comparing needs at least one image and a batch size of at least 1")
    expected, answers = [], []
    with eval_mode(model):
        for start in range(0, len(images), batch_size):
            some = images[start : start + batch_size]
            expected.append(model(paddle.to_tensor(some)).numpy())
            answers.append(engine.run(some))
    return compare_logits(np.concatenate(expected), np.concatenate(answers))


def compare_logits(expected: np.ndarray, answers: np.ndarray) -> Comparison:
    """The differences between two sets of logits [N, classes]."""
    if expected.shape != answers.shape:
        raise LowbitError(f"the model answers {list(expected.shape)}, the engine {list(answers.shape)}")
    difference = np.abs(answers.astype(np.float64) - expected.astype(np.float64))
    absolute = np.where(np.isnan(difference), np.inf, difference).max(axis=1)
    scale = np.abs(np.where(np.isfinite(expected), expected, 0).astype(np.float64)).max(axis=1)
    relative = np.divide(absolute, scale, out=np.where(absolute > 0, np.inf, 0.0), where=scale > 0)
    # Of NaNs, argmax makes a class; they agree with nothing, not even with each other.
    numbers = np.isfinite(expected).all(axis=1) & np.isfinite(answers).all(axis=1)
    return Comparison(absolute, relative, numbers & (expected.argmax(axis=1) == answers.argmax(axis=1)))
