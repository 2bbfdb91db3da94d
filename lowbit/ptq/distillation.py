"""Distillation: all blocks of a reconstructed network learn together to give the fp32 network's answers.

Reconstruction trains one block after the other, so that no block makes up for errors of another. Here the
calibration images run through the whole network: weights (straight through their rounding), steps of inputs,
batch norms and biases are trained against the outputs of the fp32 network and of each of its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.nn.eval_mode import eval_mode
from lowbit.ptq.block_training import LearnedParts
from lowbit.ptq.blocks import Block
from lowbit.recipe.recipe import Reconstruction

_TEMPERATURE = 2.0  # of the answers
_SMALLEST_VIEW = 0.6  # share of an image's area
_AS_LARGE = 32  # pixels of the side of an image from which on parts of it are shown
_BATCH = 32  # images, for measuring
_STEPS_APART = 50  # of snapshots

Image = tuple[np.ndarray, ...]  # what the network's inputs get of one image, without the batch axis


def distill(
    model: nn.Layer,
    reference: nn.Layer,
    blocks: Sequence[Block],
    norms: Mapping[int, nn.Layer],
    images: Sequence[Image],
    settings: Reconstruction,
    seed: int,
    *,
    start: Snapshot | None = None,
    keep: Callable[[Snapshot], None] = lambda _: None,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Train the quantized `model` for `settings.distill` steps against the fp32 `reference`, in place.

    `norms` are those of `block_training.train_block`. The same seed gives the same bits. `keep` gets a
    snapshot now and then; a call with one as `start` goes on from there and ends with the same bits.
    """
    rng = np.random.default_rng([seed, len(blocks)])
    rates = settings.distill_learning_rate * np.array([1.0, 0.2, 0.2])
    with ExitStack() as stack:
        for network in (model, reference):
            stack.enter_context(eval_mode(network))
        parts = LearnedParts([model], norms, settings, settings.distill_drop, rng, moving=True)
        stack.enter_context(parts.installed())
        stack.enter_context(paddle.enable_grad())
        wanted, found = (stack.enter_context(_outputs(network, blocks)) for network in (reference, model))
        optimizers = parts.optimizers(rates)
        if start is not None:
            _restore(start, parts, optimizers)
        for step in range(start.step if start else 0, settings.distill):
            batch = _views(images, settings.batch_size, np.random.default_rng([seed, len(blocks), step]))
            parts.renew_weights()
            with paddle.no_grad():
                taught = reference(*batch)
            loss = _difference(model(*batch), taught)
            loss = loss + sum(_relative_error(found[n], wanted[n]) for n in wanted) / max(1, len(wanted))
            loss.backward()
            slowed = (1 + math.cos(math.pi * step / settings.distill)) / 2
            for optimizer, rate in optimizers.values():
                optimizer.set_lr(rate * slowed)
                optimizer.step()
                optimizer.clear_grad()
            if (step + 1) % _STEPS_APART == 0:
                keep(_snapshot(step + 1, parts, optimizers))
            advance()
    parts.finish()


@dataclass(frozen=True)
class Snapshot:
    """Everything that steps of distillation change, after `step` of them."""

    step: int
    arrays: dict[str, np.ndarray]


_Optimizers = Mapping[str, tuple[paddle.optimizer.Optimizer, float]]


def _snapshot(step: int, parts: LearnedParts, optimizers: _Optimizers) -> Snapshot:
    arrays = {"calls": np.array(parts.calls())}
    for what, (optimizer, _) in optimizers.items():
        moments = optimizer.state_dict()
        for place, value in enumerate(parts.values[what]):
            arrays[f"{what}.{place}"] = value.numpy()
            # Paddle names moments after the parameter, whose own name differs from process to process.
            for key, moment in moments.items():
                if key.startswith(f"{value.name}_"):
                    arrays[f"{what}.{place}{key.removeprefix(value.name)}"] = moment.numpy()
    return Snapshot(step, arrays)


def _restore(start: Snapshot, parts: LearnedParts, optimizers: _Optimizers) -> None:
    parts.set_calls(start.arrays["calls"].tolist())
    for what, (optimizer, _) in optimizers.items():
        moments = {}
        for place, value in enumerate(parts.values[what]):
            name = f"{what}.{place}"
            value.set_value(start.arrays[name])
            for key, moment in start.arrays.items():
                if key.startswith(f"{name}_"):
                    moments[value.name + key.removeprefix(name)] = paddle.to_tensor(moment)
        optimizer.set_state_dict(moments)


@paddle.no_grad()
def answer_error(model: nn.Layer, reference: nn.Layer, images: Sequence[Image]) -> float:
    """The mean difference of the answers of both networks, which are in evaluation mode."""
    total = 0.0
    for at in range(0, len(images), _BATCH):
        some = images[at : at + _BATCH]
        batch = [paddle.to_tensor(x) for x in _stacked(some)]
        total += float(_difference(model(*batch), reference(*batch), 1.0)) * len(some)
    return total / len(images)


def _difference(outputs: Any, wanted: Any, temperature: float = _TEMPERATURE) -> Tensor:
    """Of all tensors of the outputs: of rows of logits T²·KL(wanted ‖ outputs), else the squared error."""
    parts = []
    for y, target in zip(paddle.utils.flatten(outputs), paddle.utils.flatten(wanted), strict=True):
        if target.ndim == 2 and target.shape[1] > 1:
            got, right = F.log_softmax(y / temperature), F.log_softmax(target / temperature)
            parts.append((right.exp() * (right - got)).sum(axis=1).mean() * temperature**2)
        else:
            parts.append(_relative_error(y, target))
    return paddle.add_n(parts)


def _relative_error(y: Tensor, target: Tensor) -> Tensor:
    """The squared error relative to the squares of the target."""
    return ((y - target) ** 2).mean() / ((target**2).mean() + 1e-12)


@contextmanager
def _outputs(network: nn.Layer, blocks: Sequence[Block]) -> Iterator[dict[str, Tensor]]:
    """What each block gave when the network ran last."""
    layers = dict(network.named_sublayers(include_self=True))
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        def keep(_layer: nn.Layer, _given: tuple[Any, ...], y: Tensor) -> None:
            seen[name] = y

        return keep

    hooks = [
        layers[block.modules[-1]].register_forward_post_hook(note(block.name))
        for block in blocks[:-1]  # the last one gives the answers, or nearly
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _stacked(images: Sequence[Image]) -> list[np.ndarray]:
    """Images as a batch of each input."""
    return [np.stack(each) for each in zip(*images, strict=True)]


def _views(images: Sequence[Image], size: int, rng: np.random.Generator) -> list[Tensor]:
    """Random ones; single inputs of images are mirrored, and shown in part and enlarged, at random."""
    chosen = rng.choice(len(images), min(size, len(images)), replace=False)
    batch = _stacked([images[place] for place in chosen])
    if len(batch) > 1 or batch[0].ndim != 4 or min(batch[0].shape[2:]) < _AS_LARGE:
        return [paddle.to_tensor(x) for x in batch]
    (x,) = batch
    height, width = x.shape[2:]
    shown = []
    for image in x:
        part = image[:, :, ::-1] if rng.random() < 0.5 else image
        side = math.sqrt(rng.uniform(_SMALLEST_VIEW, 1.0))
        h, w = int(side * height), int(side * width)
        top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
        part = np.ascontiguousarray(part[None, :, top : top + h, left : left + w])
        shown.append(F.interpolate(paddle.to_tensor(part), [height, width], mode="bilinear"))
    return [paddle.concat(shown)]
