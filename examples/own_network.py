"""A network of your own in 8 bits: quantize, train in a plain Paddle loop, export, verify.

python examples/own_network.py            # writes into runs/examples/own_network
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.static import InputSpec

from lowbit import QAT
from lowbit.data import open_digits
from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine, PaddleEngine, compare_outputs, export_onnx


class Net(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(3, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2D(16)
        self.conv2 = nn.Conv2D(16, 32, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2D(32)
        self.pool = nn.AdaptiveAvgPool2D(4)
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return self.head(self.pool(x).flatten(1))


def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits that come with lowbit's packages, [N, 3, 16, 16] from -1 to 1, and their labels."""
    data = open_digits(split)
    images = np.stack([data.image(i)[::2, ::2] for i in range(len(data))]).transpose(0, 3, 1, 2)
    labels = np.array([data.label(i) for i in range(len(data))])
    return images.astype("float32") / 127.5 - 1, labels


def train(net: nn.Layer, images: np.ndarray, labels: np.ndarray, *, epochs: int, rate: float) -> None:
    optimizer = paddle.optimizer.Momentum(rate, parameters=net.parameters())
    net.train()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        for some in np.array_split(order, len(images) // 32):
            logits = net(paddle.to_tensor(images[some]))
            loss = F.cross_entropy(logits, paddle.to_tensor(labels[some]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()


def accuracy(net: nn.Layer, images: np.ndarray, labels: np.ndarray) -> float:
    net.eval()
    with paddle.no_grad():
        return float((net(paddle.to_tensor(images)).numpy().argmax(1) == labels).mean())


def main(folder: Path) -> None:
    paddle.seed(0)
    images, labels = digits("train")
    test_images, test_labels = digits("val")

    net = Net()
    train(net, images, labels, epochs=3, rate=0.02)
    print(f"fp32       {accuracy(net, test_images, test_labels):.2%}")

    quanter = QAT(config={"activation_preprocess_type": "PACT", "weight_bits": 8, "activation_bits": 8})
    quanter.quantize(net)  # before the optimizer is made, since PACT's bounds are new parameters
    train(net, images, labels, epochs=1, rate=0.001)
    print(f"quantized  {accuracy(net, test_images, test_labels):.2%}")

    quanter.save_quantized_model(net, f"{folder}/model", input_spec=[InputSpec([None, 3, 16, 16])])
    made = export_onnx(net, folder / "model.onnx", model_name="Net", image_shape=(3, 16, 16))
    print(f"model.onnx is {made.fp32_size / made.size:.1f} times smaller than in fp32")

    for engine in (
        PaddleEngine(folder, file_name="model"),
        OnnxRuntimeEngine(folder / "model.onnx"),
        OpenVinoEngine(folder / "model.onnx"),
    ):
        print(f"{engine.name}: {compare_outputs(net, engine, test_images)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/examples/own_network"))
