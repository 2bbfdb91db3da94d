"""A small network that has learned something, quantized, and the images that it was taught with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import paddle
import pytest
from paddle import nn

from lowbit.data import Batch
from lowbit.nn import calibrate, prepare
from lowbit.recipe import make_recipe

W4A4 = {
    "rules": [
        {
            "forward": {
                "input": {"grid": "int4", "scaling": "learned"},
                "weight": {"grid": "int4", "granularity": "N", "scaling": "learned"},
            }
        }
    ],
    "calibration": {"steps": 1},
}


class Branches(nn.Layer):
    """Six layers, one of them called twice, and two ways from the first to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2D(3, 8, 3, padding=1)
        self.left, self.right = nn.Conv2D(8, 8, 3, padding=1), nn.Conv2D(8, 8, 1)
        self.twice = nn.Conv2D(8, 8, 3, padding=1)
        self.late = nn.Conv2D(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = nn.functional.relu(self.first(x))
        x = nn.functional.relu(self.left(x) + self.right(x))
        x = nn.functional.relu(self.twice(nn.functional.relu(self.twice(x))))
        return self.head(nn.functional.relu(self.late(x)).mean([2, 3]))


@pytest.fixture(scope="session")
def task() -> tuple[np.ndarray, np.ndarray]:
    """64 images of four kinds with noise over them, and their labels."""
    rng = np.random.default_rng(0)
    kinds = rng.standard_normal((4, 3, 12, 12), np.float32)
    labels = np.arange(64) % 4
    return kinds[labels] + 0.3 * rng.standard_normal((64, 3, 12, 12), np.float32), labels


@pytest.fixture(scope="session")
def weights(task) -> dict[str, np.ndarray]:
    """Of a network that has learned the task, in a second."""
    paddle.seed(3)
    network = Branches()
    optimizer = paddle.optimizer.Adam(0.01, parameters=network.parameters())
    for _ in range(40):
        loss = nn.functional.cross_entropy(network(paddle.to_tensor(task[0])), paddle.to_tensor(task[1]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    assert float(loss) < 0.2
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


@pytest.fixture
def model(task, weights) -> nn.Layer:
    """The trained network, quantized to 4 bits without training."""
    network = Branches()
    network.set_state_dict(weights)
    prepare(network, make_recipe(W4A4))
    calibrate(network, [paddle.to_tensor(task[0])])
    network.eval()
    return network


class Batches:
    """What `analyze` uses of a Loader."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, _epoch: int, start: int = 0) -> Iterator[Batch]:
        return iter(self.batches[start:])


@pytest.fixture
def loader(task) -> Batches:
    """The images in three batches."""
    images, labels = task
    return Batches([Batch(images[i : i + 25], labels[i : i + 25], 1.0) for i in range(0, 64, 25)])
