"""One training step: forward, backward, update; or, when a number is not finite, no trace of it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import paddle

from lowbit.data import Batch, topk_right
from lowbit.errors import LowbitError
from lowbit.nn.eval_mode import cause, failing_layer
from lowbit.training.losses import batch_loss, distilled, split_outputs
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
        """Trains on one batch, whose gradients may be added up piece by piece."""
        session, precision = self._session, self._session.precision
        seed_everything(session.config.Global.seed, session.progress.step, session.ranks.rank)
        before = [buffer.clone() for buffer in self._statistics]
        topk = session.config.train_topk
        value, hits, parts = 0.0, np.zeros(len(topk)), dict.fromkeys(session.loss_parts, 0.0)
        for piece in batch.split():
            loss, logits, own_parts = self._backward(piece)
            part = len(piece.labels) / len(batch.labels)
            value += loss * part
            hits += _hits(logits, piece, topk)
            parts = {name: parts[name] + own_parts[name] * part for name in parts}

        finite = precision.unscale_(self._parameters) and math.isfinite(value)
        finite = not session.ranks.any(not finite)
        if finite:
            if session.oscillation:
                session.oscillation.damp(self._share_done())
            if norm := session.config.Optimizer.largest_norm:
                paddle.nn.utils.clip_grad_norm_(self._parameters, norm)
            session.optimizer.set_lr(learning_rate)
            session.optimizer.step()
            if session.oscillation:
                session.oscillation.update()
        else:
            for buffer, old in zip(self._statistics, before, strict=True):
                buffer.set_value(old)
        precision.update(finite)
        session.optimizer.clear_grad(set_to_zero=False)
        samples = len(batch.labels) if batch.weight > 0 else 0
        return StepResult(loss=value, hits=hits * bool(samples), samples=samples, finite=finite, parts=parts)

    def _backward(self, batch: Batch) -> tuple[float, np.ndarray, dict[str, float]]:
        """Adds the gradients of a batch; returns its loss, the network's answers, and the loss's parts."""
        session, precision = self._session, self._session.precision
        images = paddle.to_tensor(batch.images)
        features = session.features
        with features.compared() if features else nullcontext() as error:
            taught = session.teacher.logits(images) if session.teacher else None
            with precision.autocast():
                heads = self._outputs(images)
            heads = [logits.astype("float32") for logits in heads]
            loss = batch_loss(session.config.train_loss, heads, batch)
            parts: dict[str, float] = {}
            if taught is not None:
                loss, parts = distilled(session.config.Distillation, loss, heads[0], taught)
            if error is not None:
                feature_error = error()
                parts["features"] = float(feature_error)
                loss = loss + self._feature_weight() * feature_error
        # The weight is 1 unless ranks have unequal shares of a batch, or it is a piece of one; Paddle
        # averages over ranks.
        weighted = loss if batch.weight == 1 else loss * batch.weight
        precision.scale(weighted).backward()
        return float(loss), heads[0].numpy(), parts

    def _share_done(self) -> float:
        """How much of the run is done, from 0 to 1."""
        session = self._session
        return min(session.progress.step / (session.config.Global.epochs * len(session.train_loader)), 1.0)

    def _feature_weight(self) -> float:
        """Falls from `feature_weight` to 0 by a cosine."""
        share = (1 + math.cos(math.pi * self._share_done())) / 2
        return self._session.config.Distillation.feature_weight * share

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


def _hits(logits: np.ndarray, batch: Batch, topk: tuple[int, ...]) -> np.ndarray:
    """How often the answer is right; of a mixed image each of its two classes counts by its share."""
    right = topk_right(logits, batch.labels, topk)
    if batch.other_labels is not None and batch.shares is not None:
        right = batch.shares * right + (1 - batch.shares) * topk_right(logits, batch.other_labels, topk)
    return right.sum(axis=1, dtype=np.float64)
