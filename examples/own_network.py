"""A network of your own in 8 bits: quantize, train in a plain Paddle loop, export, verify.

python examples/own_network.py            # writes into runs/examples/own_network
"""

from __future__ import annotations

import sys
from pathlib import Path

import paddle
from digits_task import accuracy, digits, train
from paddle import nn
from paddle.nn import functional as F
from paddle.static import InputSpec

from lowbit import QAT
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


def main(folder: Path) -> None:
    paddle.seed(0)
    images, labels = digits("train")
    test_images, test_labels = digits("val")

    net = Net()
    optimizer = paddle.optimizer.Momentum(0.02, parameters=net.parameters())
    train(net, images, labels, epochs=3, optimizer=optimizer)
    print(f"fp32       {accuracy(net, test_images, test_labels):.2%}")

    quanter = QAT(config={"activation_preprocess_type": "PACT", "weight_bits": 8, "activation_bits": 8})
    quanter.quantize(net)  # before the optimizer is made, since PACT's bounds are new parameters
    optimizer = paddle.optimizer.Momentum(0.001, parameters=net.parameters())
    train(net, images, labels, epochs=1, optimizer=optimizer)
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
