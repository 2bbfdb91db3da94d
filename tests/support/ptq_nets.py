"""Tiny networks and images for the tests of post-training quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from lowbit.nn import calibrate, prepare
from lowbit.recipe import Recipe, make_recipe


class Residual(nn.Layer):
    """Two convolutions beside a shortcut; `projects` puts a convolution into the shortcut."""

    def __init__(self, channels: int, *, projects: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(channels, channels, 3, padding=1, bias_attr=False)
        self.bn1 = nn.BatchNorm2D(channels)
        self.conv2 = nn.Conv2D(channels, channels, 3, padding=1, groups=channels, bias_attr=False)
        self.bn2 = nn.BatchNorm2D(channels)
        self.shortcut = nn.Conv2D(channels, channels, 1) if projects else nn.Identity()

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class Net(nn.Layer):
    """A stem, two residual modules in a Sequential, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2D(3, 8, 3, padding=1), nn.BatchNorm2D(8), nn.ReLU())
        self.stage = nn.Sequential(Residual(8), Residual(8, projects=True))
        self.head = nn.Linear(8, 5)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.head(self.stage(self.stem(x)).mean([2, 3]))


def recipe(bits: int = 3, **settings: Any) -> Recipe:
    """Few bits, so that rounding matters; a short reconstruction."""
    operand = {"scaling": "fixed", "observer": "mse"}
    return make_recipe(
        {
            "rules": [
                {
                    "forward": {
                        "input": {"grid": "int8", "sign": "auto", **operand},
                        "weight": {"grid": f"int{bits}", "granularity": "N", **operand},
                    }
                }
            ],
            "calibration": {"steps": 2},
            "reconstruction": {"iterations": 60, "batch_size": 8, "learning_rate": 0.05, **settings},
        }
    )


def images(count: int = 32, size: int = 12, seed: int = 0) -> paddle.Tensor:
    """Images with structure: weights matter together, not one by one."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal([count, 3, size // 4, size // 4]).astype(np.float32)
    return paddle.to_tensor(np.kron(base, np.ones([1, 1, 4, 4], np.float32)) + 0.3)


def network(seed: int = 0) -> nn.Layer:
    """The network with batch norms that have seen images."""
    paddle.seed(seed)
    net = Net()
    net.train()
    for turn in range(5):
        net(images(seed=turn))
    net.eval()
    return net


def calibrated(net: nn.Layer, chosen: Recipe) -> nn.Layer:
    """The network, prepared and calibrated."""
    prepare(net, chosen)
    calibrate(net, [images()])
    return net
