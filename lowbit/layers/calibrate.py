"""Calibration: batches that are only looked at, from which the first scales are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.quantizer import Quantizer


def calibrate(model: nn.Layer, batches: Iterable[Tensor | Sequence[Tensor]]) -> int:
    """Run the batches through the unquantized model and start every range, step, bound and sign from them.

    What is known already (trained, or loaded from a checkpoint) stays. A batch is the model's input, or the
    list of its inputs. The model computes as in evaluation and comes back as it was. Returns the number
    of batches.

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
                model(*batch) if isinstance(batch, list | tuple) else model(batch)
                count += 1
    finally:
        for quantizer in quantizers:
            quantizer.end_calibration()
    if not count:
        raise LowbitError("calibration got no batches: the scales are as unknown as before")
    return count


def find_quantizers(model: nn.Layer) -> list[Quantizer]:
    """The quantizers of a prepared model, in its order."""
    return [layer for layer in model.sublayers(include_self=True) if isinstance(layer, Quantizer)]
