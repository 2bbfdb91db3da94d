"""One training step: forward, backward, update; or, when a number is not finite, no trace of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle

from lowbit.data import Batch, topk_hits
from lowbit.errors import LowbitError
from lowbit.nn.eval_mode import cause, failing_layer
from lowbit.training.losses import cross_entropy_of_outputs, distilled, split_outputs
from lowbit.training.process import seed_everything
from lowbit.training.session import Session


@dataclass(frozen=True)
class StepResult:
    """What a step saw. `finite` is False when it was skipped for a NaN or Inf on any rank."""

    loss: float
    hits: np.ndarray
    samples: int
    finite: bool
    parts: dict[str, float] = field(default_factory=dict)  # of the loss, with a teacher


class TrainingStep:
    """Carries out steps on a session's model."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._parameters = [p for p in session.model.parameters() if not p.stop_gradient]
        # They change in the forward pass, before anything can be found wrong.
        self._statistics = session.statistics

    def __call__(self, batch: Batch, learning_rate: float) -> StepResult:
        """Trains on one batch."""
        session, precision = self._session, self._session.precision
        seed_everything(session.config.Global.seed, session.progress.step, session.ranks.rank)
        before = [buffer.clone() for buffer in self._statistics]
        labels = paddle.to_tensor(batch.labels)
        images = paddle.to_tensor(batch.images)
        taught = session.teacher.logits(images) if session.teacher else None
        with precision.autocast():
            outputs = self._outputs(images)
        logits, *auxiliary = (one.astype("float32") for one in outputs)
        section = session.config.Loss.Train[0].CELoss
        loss = cross_entropy_of_outputs([logits, *auxiliary], labels, section)
        parts: dict[str, Any] = {}
        if taught is not None:
            loss, parts = distilled(session.config.Distillation, loss, logits, taught)
        # The weight is 1 unless ranks have unequal shares of a batch; Paddle averages over ranks.
        weighted = loss if batch.weight == 1 else loss * batch.weight
        precision.scale(weighted).backward()

        value = float(loss)
        finite = precision.unscale_(self._parameters) and math.isfinite(value)
        finite = not session.ranks.any(not finite)
        if finite:
            if clip_norm := session.config.Optimizer.clip_norm:
                paddle.nn.utils.clip_grad_norm_(self._parameters, clip_norm)
            session.optimizer.set_lr(learning_rate)
            session.optimizer.step()
        else:
            for buffer, old in zip(self._statistics, before, strict=True):
                buffer.set_value(old)
        precision.update(finite)
        session.optimizer.clear_grad(set_to_zero=False)

        samples = len(batch.labels) if batch.weight > 0 else 0
        hits = topk_hits(logits.numpy(), batch.labels, session.config.train_topk) * bool(samples)
        return StepResult(loss=value, hits=hits, samples=samples, finite=finite, parts=parts)

    def _outputs(self, images: paddle.Tensor) -> list[paddle.Tensor]:
        """The network's logits, then those of auxiliary classifiers; an error in the words of the user."""
        session, shape = self._session, list(images.shape)
        try:
            returned = session.network(images)
        except (ValueError, RuntimeError, TypeError) as error:
            where = failing_layer(error, session.model)
            raise LowbitError(
                f"{session.config.Arch.name} does not run on a batch of images {shape}"
                f"{f', in {where}' if where else ''}: {cause(error)}"
            ) from error
        expected = [shape[0], len(session.classes)]
        try:
            logits, auxiliary = split_outputs(returned)
        except LowbitError as error:
            raise LowbitError(f"{session.config.Arch.name}: {error}") from error
        if list(logits.shape) != expected:
            raise LowbitError(
                f"{session.config.Arch.name}: forward must return logits {expected} (images, classes) in "
                f"training, it returns {list(logits.shape)}"
            )
        return [logits, *auxiliary]
