"""Run a model as it will be served, and leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import paddle
from paddle import nn


@contextmanager
def eval_mode(model: nn.Layer) -> Iterator[None]:
    """Everything inside sees the model in evaluation mode without gradients; modes and RNG come back after.

    Each layer's mode is kept by itself: `model.train()` afterwards would thaw a batch norm that was frozen.
    """
    modes = [(layer, layer.training) for layer in model.sublayers(include_self=True)]
    random_state = paddle.get_rng_state()
    model.eval()
    try:
        with paddle.no_grad():
            yield
    finally:
        for layer, training in modes:
            layer.training = training
        paddle.set_rng_state(random_state)
