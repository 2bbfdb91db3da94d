"""A network of your own: QAT in 4 bits, training in 4 bits with gradients, export, verify, analyze.

python examples/quantize_my_model.py      # writes into runs/examples/quantize_my_model

Of lowbit, one import and one call for each step.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

import lowbit


class Net(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2D(16)
        self.conv2 = nn.Conv2D(16, 32, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2D(32)
        self.conv3 = nn.Conv2D(32, 32, 3, padding=1)
        self.norm3 = nn.BatchNorm2D(32)
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        return self.head(x.flatten(1))


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Handwritten digits [N, 1, 8, 8] from 0 to 1 with their labels, to train and to test with."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8).astype("float32") / 16
    return (images[:1500], labels[:1500]), (images[1500:], labels[1500:])


def train(net: nn.Layer, images: np.ndarray, labels: np.ndarray, *, epochs: int, rate: float) -> None:
    optimizer = paddle.optimizer.Momentum(rate, parameters=net.parameters())
    net.train()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        for some in np.array_split(order, len(images) // 32):
            loss = F.cross_entropy(net(paddle.to_tensor(images[some])), paddle.to_tensor(labels[some]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()


def main(folder: Path) -> None:
    paddle.seed(0)
    training, test = digits()
    example = test[0][:16]

    lowbit.accelerate()  # the fast CPU path for the loop above, in fp32 and quantized
    net = Net()
    train(net, *training, epochs=5, rate=0.02)

    # Quantization-aware training: weights and activations in 4 bits.
    qat = lowbit.quantize(copy.deepcopy(net), "qat_w4a4", data=training)
    train(qat, *training, epochs=2, rate=0.002)
    print(lowbit.export(qat, folder / "qat", example=example))
    print(lowbit.verify(qat, folder / "qat", test, latency=False, baseline=net))
    print(lowbit.analyze(qat, test))

    # Low-precision training from scratch: gradients in 4 bits, too.
    low = lowbit.quantize(Net(), "qt_w4a4g4")
    train(low, *training, epochs=5, rate=0.02)
    print(lowbit.export(low, folder / "low", example=example, data=training))
    print(lowbit.verify(low, folder / "low", test, latency=False))
    print(lowbit.analyze(low, test))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/examples/quantize_my_model"))
