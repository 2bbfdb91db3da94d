"""Networks made of a function, and small quantized networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import paddle
from paddle import nn

from lowbit.nn import calibrate, eval_mode, prepare
from lowbit.recipe import make_recipe


class Net(nn.Layer):
    """A function of images as a network: its logits are what the function gives, one row per image."""

    def __init__(self, function: Callable, *layers: nn.Layer) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.LayerList(layers)

    def forward(self, x):
        return self.function(x, *self.layers).flatten(1)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def answers(model: nn.Layer, images: np.ndarray) -> np.ndarray:
    with eval_mode(model):
        return model(paddle.to_tensor(images)).numpy()


def quantized(model: nn.Layer, shape: Sequence[int], **config) -> nn.Layer:
    """The model prepared by a PaddleSlim config or by rules, and calibrated on noise."""
    calibration = {"calibration": {"steps": 2}} if "rules" in config else {}
    batches = [paddle.to_tensor(normal(4, *shape, seed=seed)) for seed in (1, 2)]
    prepare(model, make_recipe((config or {"weight_bits": 8}) | calibration), batches[0])
    calibrate(model, batches)
    return model
