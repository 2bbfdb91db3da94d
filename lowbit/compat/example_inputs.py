"""Inputs with which a model runs, guessed from its first layer, where an interface does not ask for any."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.nn import eval_mode
from lowbit.recipe import find_layers

_SIDES = (32, 224)


def example_inputs(model: nn.Layer) -> list[Tensor]:
    """A batch of two of random numbers that the model takes, or a LowbitError.

    >>> list(example_inputs(nn.Sequential(nn.Linear(4, 2)))[0].shape)
    [2, 4]
    """
    first = dict(model.named_sublayers())[find_layers(model)[0].name]
    shapes = _shapes(first)
    for shape in shapes:
        numbers = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        inputs = [paddle.to_tensor(numbers)]
        try:
            with eval_mode(model):
                model(*inputs)
        except Exception:  # the user's own forward may raise anything; the next shape is tried
            continue
        return inputs
    raise LowbitError(
        f"fuse_conv_bn needs to run {type(model).__name__} once, but it runs on none of the inputs "
        f"{', '.join(map(str, shapes))}: leave fuse_conv_bn out and call "
        "lowbit.nn.fold_batch_norm(net, *inputs) with inputs of your own before quantize"
    )


def _shapes(first: nn.Layer) -> list[list[int]]:
    if isinstance(first, nn.Linear):
        return [[2, first.weight.shape[0]]]
    sizes = [{"N": 2, "C": first._in_channels, "H": side, "W": side} for side in _SIDES]
    return [[size[letter] for letter in first._data_format] for size in sizes]
