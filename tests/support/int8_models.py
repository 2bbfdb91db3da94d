"""A small network with all that the int8 form treats differently, quantized."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from lowbit.nn import calibrate, prepare
from lowbit.recipe import make_recipe
from tests.support.exports import CLASSES, SHAPE

INT8 = {"grid": "int8", "sign": "auto", "granularity": "per-tensor", "scaling": "moving_average"}
NARROW = {"grid": "int8-narrow", "granularity": "N", "scaling": "dynamic"}


class EveryKind(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2D(3, 8, 3, padding=1, bias_attr=False)
        self.norm = nn.BatchNorm2D(8)
        self.depthwise = nn.Conv2D(8, 8, 3, stride=2, padding="SAME", groups=8)
        self.grouped = nn.Conv2D(8, 8, 3, padding=2, dilation=2, groups=2)
        self.reflecting = nn.Conv2D(8, 8, 3, padding=1, padding_mode="reflect")
        self.last = nn.Conv2D(8, 8, 1)
        self.last_norm = nn.BatchNorm2D(8)
        self.hidden = nn.Linear(8 * 16, 8, bias_attr=False)
        self.head = nn.Linear(8, len(CLASSES))

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        y = F.hardswish(self.depthwise(x))
        y = F.relu6(self.grouped(y)) + self.reflecting(y)
        y = F.relu(self.last_norm(self.last(y)) + F.avg_pool2d(x, 2))
        return self.head(F.relu(self.hidden(y.flatten(1))))


def quantized(model: nn.Layer, input_: dict = INT8, weight: dict = NARROW, **settings) -> nn.Layer:
    """The model with batch norms that have seen something, calibrated on random images."""
    rules = [{"forward": {"input": input_, "weight": weight}}]
    recipe = make_recipe({"rules": rules, "calibration": {"steps": 2}} | settings)
    rng = np.random.default_rng(0)
    batches = [paddle.to_tensor(rng.standard_normal((4, *SHAPE), dtype=np.float32)) for _ in range(2)]
    model.train()
    for batch in batches:
        model(batch)
    for layer in model.sublayers():
        if isinstance(layer, nn.BatchNorm2D):  # gains of both signs, and a channel that is turned off
            gains = rng.standard_normal(layer.weight.shape[0]).astype(np.float32)
            gains[0] = 0
            layer.weight.set_value(gains)
    calibrate(prepare(model, recipe, batches[0]), batches)
    model.eval()
    return model
