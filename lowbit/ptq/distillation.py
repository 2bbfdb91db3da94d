"""Distillation: all blocks of a reconstructed network learn together to give the fp32 network's answers.

Reconstruction trains one block after the other, so that no block makes up for errors of another. Here the
calibration images run through the whole network: weights (straight through their rounding), steps of inputs,
batch norms and biases are trained against the outputs of the fp32 network and of each of its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from lowbit.nn.eval_mode import eval_mode
from lowbit.ptq.block_training import LearnedParts
from lowbit.ptq.blocks import Block
from lowbit.recipe.recipe import Reconstruction

_TEMPERATURE = 2.0  # of the answers
_WINDOW = 5 / 7  # of the sides of an image, rounded down to
_MULTIPLE = 32  # pixels, by which networks make images smaller
_SMALLEST_WINDOW = 64  # pixels; smaller images are shown whole
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
        # The last block gives the answers, or nearly.
        names = [block.modules[-1] for block in blocks[:-1]]
        wanted, found = (stack.enter_context(layer_outputs(net, names)) for net in (reference, model))
        optimizers = parts.optimizers(rates)
        window = find_window(reference, images[0])
        if start is not None:
            _restore(start, parts, optimizers)
        for step in range(start.step if start else 0, settings.distill):
            batch = _views(
                images, settings.batch_size, window, np.random.default_rng([seed, len(blocks), step])
            )
            parts.renew_weights()
            with paddle.no_grad():
                taught = reference(*batch)
            loss = _difference(model(*batch), taught)
            errors = sum(relative_error(found[n], wanted[n]) for n in wanted)
            loss = loss + settings.distill_block_weight / max(1, len(wanted)) * errors
            loss.backward()
            slowed = (1 + math.cos(math.pi * step / settings.distill)) / 2
            for optimizer, rate in optimizers.values():
                optimizer.set_lr(rate * slowed)
                optimizer.step()
                optimizer.clear_grad()
            if settings.distill_decay:
                parts.decay_weights(settings.distill_decay * slowed)
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
            parts.append(relative_error(y, target))
    return paddle.add_n(parts)


def relative_error(y: Tensor, target: Tensor) -> Tensor:
    """The squared error relative to the squares of the target, which has no gradient."""
    return _RelativeError.apply(y, target.detach())


class _RelativeError(PyLayer):
    """Sums of squares as dot products: powers and their gradients took 40 % of a step of distillation."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, target: Tensor) -> Tensor:
        # One sum per channel: sums of millions of values one after the other would not be exact.
        rows = [math.prod(y.shape[:2]), -1]
        wrong, right = paddle.subtract(y, target).reshape(rows), target.reshape(rows)
        size = paddle.dot(right, right).sum() + 1e-12 * target.size
        ctx.save_for_backward(wrong, size)
        ctx.shape = y.shape
        return paddle.dot(wrong, wrong).sum() / size

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        wrong, size = ctx.saved_tensor()
        return (wrong * (2 * dy / size)).reshape(ctx.shape), None


@contextmanager
def layer_outputs(network: nn.Layer, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """What each of these layers gave when the network ran last, within the `with`."""
    layers = dict(network.named_sublayers(include_self=True))
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        def keep(_layer: nn.Layer, _given: tuple[Any, ...], y: Tensor) -> None:
            seen[name] = y

        return keep

    hooks = [layers[name].register_forward_post_hook(note(name)) for name in names]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _stacked(images: Sequence[Image]) -> list[np.ndarray]:
    """Images as a batch of each input."""
    return [np.stack(each) for each in zip(*images, strict=True)]


@paddle.no_grad()
def find_window(network: nn.Layer, image: Image) -> tuple[int, int] | None:
    """Height and width of the parts of images to train on; None for whole ones.

    Parts take half of the time, and there are more of them. Not of images that are small already, and not
    where the network takes a single size, or gives answers of another shape.
    """
    if len(image) > 1 or image[0].ndim != 3:
        return None
    height, width = (int(size * _WINDOW) // _MULTIPLE * _MULTIPLE for size in image[0].shape[1:])
    if min(height, width) < _SMALLEST_WINDOW:
        return None
    whole = image[0][None]
    part = np.ascontiguousarray(whole[..., :height, :width])
    try:
        outputs = [paddle.utils.flatten(network(paddle.to_tensor(x))) for x in (whole, part)]
    except Exception:  # whatever a layer raises that takes another size
        return None
    same = [a.shape == b.shape for a, b in zip(*outputs, strict=True)]
    return (height, width) if all(same) else None


def _views(
    images: Sequence[Image], size: int, window: tuple[int, int] | None, rng: np.random.Generator
) -> list[Tensor]:
    """Random ones; single inputs of images are mirrored at random, and shown in part with a window."""
    chosen = [images[place] for place in rng.choice(len(images), min(size, len(images)), replace=False)]
    if len(chosen[0]) == 1 and chosen[0][0].ndim == 3:
        chosen = [(_view(image, window, rng),) for (image,) in chosen]
    return [paddle.to_tensor(x) for x in _stacked(chosen)]


def _view(image: np.ndarray, window: tuple[int, int] | None, rng: np.random.Generator) -> np.ndarray:
    if window is not None:
        top, left = (
            int(rng.integers(whole - part + 1)) for whole, part in zip(image.shape[1:], window, strict=True)
        )
        image = image[:, top : top + window[0], left : left + window[1]]
    return image[:, :, ::-1] if rng.random() < 0.5 else image
