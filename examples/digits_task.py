"""What the examples have in common: small images of digits, a plain training loop, and accuracy."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from lowbit.data import open_digits


def digits(split: str, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits that come with lowbit's packages, [N, 3, 16, 16] from -1 to 1, and their labels."""
    data = open_digits(split)
    indices = range(count or len(data))
    images = np.stack([data.image(i)[::2, ::2] for i in indices]).transpose(0, 3, 1, 2)
    labels = np.array([data.label(i) for i in indices])
    return images.astype("float32") / 127.5 - 1, labels


def train(
    net: nn.Layer,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    epochs: int,
    optimizer: paddle.optimizer.Optimizer,
    batch_size: int = 32,
) -> None:
    """A plain loop; lowbit needs no other one."""
    net.train()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        for some in np.array_split(order, len(images) // batch_size):
            logits = net(paddle.to_tensor(images[some]))
            loss = F.cross_entropy(logits, paddle.to_tensor(labels[some]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()


def accuracy(net: nn.Layer, images: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of images to which the network gives their label."""
    net.eval()
    with paddle.no_grad():
        return float((net(paddle.to_tensor(images)).numpy().argmax(1) == labels).mean())
