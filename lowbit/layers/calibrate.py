"""Calibration: batches that are only looked at, from which the first scales are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.quantizer import Quantizer


def calibrate(model: nn.Layer, batches: Iterable[Tensor | Sequence[Tensor]]) -> int:
    """Run the batches through the unquantized model and start every range, step, bound and sign from them.

    What is known already (trained, or loaded from a checkpoint) stays. A batch is the model's input, or the
    list of its inputs. The model computes as in evaluation and comes back as it was. Returns the number
    of batches. With the observer `sensitivity` a batch needs as much memory as in training.

    calibrate(model, (images for images, labels in itertools.islice(loader, 20)))
    """
    quantizers = find_quantizers(model)
    if not quantizers:
        raise LowbitError("the model has no quantizers to calibrate: prepare it with a recipe first")
    count = 0
    try:
        for quantizer in quantizers:
            quantizer.start_calibration()
        with eval_mode(model):
            for batch in batches:
                _show(model, batch if isinstance(batch, list | tuple) else [batch], quantizers, seed=count)
                count += 1
    finally:
        for quantizer in quantizers:
            quantizer.end_calibration()
    if not count:
        raise LowbitError("calibration got no batches: the scales are as unknown as before")
    return count


def _show(model: nn.Layer, inputs: Sequence[Tensor], quantizers: list[Quantizer], *, seed: int) -> None:
    """Run the model on a batch and let the quantizers look on, at gradients of the answers where wanted.

    Those are of a sum of all answers with random signs, whose square is, on average, that of all answers'
    gradients added up.
    """
    watching = [q.sightings for q in quantizers if q.sightings is not None and q.sightings.wants_gradients]
    if not watching:
        model(*inputs)
        return
    with paddle.enable_grad(), _fixed_parameters(model):
        _with_random_signs(model(*inputs), np.random.default_rng(seed)).backward()
    for sightings in watching:
        for x in sightings.take_waiting():
            sightings.weigh(x, x.grad)


@contextmanager
def _fixed_parameters(model: nn.Layer) -> Iterator[None]:
    """Within it, a backward pass leaves the parameters' gradients alone."""
    trained = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    for parameter in trained:
        parameter.stop_gradient = True
    try:
        yield
    finally:
        for parameter in trained:
            parameter.stop_gradient = False


def _with_random_signs(answers: Any, rng: np.random.Generator) -> Tensor:
    total = paddle.zeros([])
    for out in paddle.utils.flatten(answers):
        if isinstance(out, Tensor) and out.is_floating_point():
            signs = paddle.to_tensor(rng.choice(np.array([-1, 1], np.float32), out.shape))
            total = total + (out.cast("float32") * signs).sum()
    return total


def find_quantizers(model: nn.Layer) -> list[Quantizer]:
    """The quantizers of a prepared model, in its order."""
    return [layer for layer in model.sublayers(include_self=True) if isinstance(layer, Quantizer)]
