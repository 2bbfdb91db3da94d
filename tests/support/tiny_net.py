"""The smallest network that has all that behaves differently in training: batch norm and dropout."""

from __future__ import annotations

import paddle
from paddle import nn


class TinyNet(nn.Layer):
    def __init__(self, num_classes: int = 4, dropout: float = 0.2) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2D(8)
        self.pool = nn.AdaptiveAvgPool2D(4)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(8 * 4 * 4, num_classes)

    def forward(self, x):
        x = nn.functional.relu(self.norm(self.conv(x)))
        return self.head(self.drop(self.pool(x).flatten(1)))


def build_tiny(seed: int = 0, num_classes: int = 4) -> TinyNet:
    paddle.seed(seed)
    return TinyNet(num_classes)
