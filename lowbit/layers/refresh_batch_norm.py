"""Batch norm's statistics taken anew from batches, as for a model that is tested otherwise than trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.foldable import BATCH_NORM


def refresh_batch_norm(model: nn.Layer, batches: Iterable[Tensor]) -> int:
    """Give every batch norm the mean, over the batches, of the statistics that it sees; how many there were.

    A batch counts by its images, and there is no momentum: what was kept before does not matter. Everything
    but batch norm computes as in evaluation. A batch norm with `use_global_stats` keeps what it has.

    refresh_batch_norm(model, (paddle.to_tensor(batch.images) for batch in islice(loader.epoch(0), 50)))
    """
    sums = {id(norm): _Sums(norm) for norm in _batch_norms(model)}
    count = 0
    with eval_mode(model), ExitStack() as undo:
        for norm_sums in sums.values():
            norm_sums.watch(undo)
        for images in batches:
            model(images)
            count += 1
    if not count:
        raise LowbitError("there are no batches to take batch norm's statistics from")
    for norm_sums in sums.values():
        norm_sums.write()
    return count


@contextmanager
def refreshed_batch_norm(model: nn.Layer, batches: Iterable[Tensor]) -> Iterator[int]:
    """Within it the statistics are those of `refresh_batch_norm`; what they were comes back after.

    with refreshed_batch_norm(model, batches):
        logits = model(images)
    """
    before = [(part, part.clone()) for norm in _batch_norms(model) for part in (norm._mean, norm._variance)]
    try:
        yield refresh_batch_norm(model, batches)
    finally:
        for part, value in before:
            part.set_value(value)


def _batch_norms(model: nn.Layer) -> list[nn.Layer]:
    kinds = BATCH_NORM | nn.BatchNorm
    found = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, kinds)]
    return [norm for norm in found if not norm._use_global_stats]


class _Sums:
    """What one batch norm has seen, in fp64: sums of means and variances, each times its images."""

    def __init__(self, norm: nn.Layer) -> None:
        self._norm, self._images = norm, 0
        self._parts = (norm._mean, norm._variance)
        self._totals = [np.zeros(part.shape, np.float64) for part in self._parts]

    def watch(self, undo: ExitStack) -> None:
        """From now on normalize by the batch, and add up its statistics."""
        norm = self._norm
        undo.callback(setattr, norm, "_momentum", norm._momentum)
        norm._momentum = 0.0  # then what training keeps is the batch's own
        if getattr(norm, "freeze_after", None) is not None:  # see lowbit.layers.batch_norm
            undo.callback(setattr, norm, "freeze_after", norm.freeze_after)
            norm.freeze_after = None
        norm.training = True  # eval_mode takes it back
        kept = [part.clone() for part in self._parts]

        def add(_norm: nn.Layer, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
            images = inputs[0].shape[0]
            self._images += images
            for total, part, before in zip(self._totals, self._parts, kept, strict=True):
                total += images * part.numpy().astype(np.float64)
                part.set_value(before)  # a layer with its batch norm folded into it places its grid by them

        undo.callback(norm.register_forward_post_hook(add).remove)

    def write(self) -> None:
        """Keep the means; a batch norm that no batch has reached keeps what it had."""
        if self._images:
            for total, part in zip(self._totals, self._parts, strict=True):
                part.set_value(paddle.to_tensor((total / self._images).astype(np.float32)))
