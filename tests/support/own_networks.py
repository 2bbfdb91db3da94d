"""Networks and data of a user's own."""

from __future__ import annotations

from pathlib import Path

import paddle
from paddle import nn
from paddle.nn import functional as F

RECIPES = Path(__file__).parents[2] / "recipes"
QAT, LOW, PTQ = (str(RECIPES / f"{name}.yaml") for name in ("qat_w4a4", "qt_w4a4g4", "ptq_w8a8"))


class Net(nn.Layer):
    """A small CNN with batch norm, four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2D(8)
        self.conv2 = nn.Conv2D(8, 8, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2D(8)
        self.head = nn.Linear(8 * 4 * 4, 4)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        return self.head(F.relu(self.norm2(self.conv2(x))).flatten(1))


class TwoInputs(nn.Layer):
    """Two inputs, and a dict with a tuple in it as the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(6, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, left, right):
        joined = F.relu(self.left(left) + self.right(right))
        return {"logits": self.head(joined), "features": (joined, joined.mean(1))}


def build(seed: int = 0) -> Net:
    paddle.seed(seed)
    return Net()


def step(net: nn.Layer, images, labels, *, steps: int = 4, rate: float = 0.01) -> list[float]:
    """A loop of one's own; the losses."""
    optimizer = paddle.optimizer.Momentum(rate, parameters=net.parameters())
    net.train()
    losses = []
    for _ in range(steps):
        logits = net(paddle.to_tensor(images[:16]))
        loss = F.cross_entropy(logits, paddle.to_tensor(labels[:16]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses
