"""ResNet18 of paddle.vision in 8 bits, by a recipe with rules for single layers: trained, exported, verified.

python examples/vision_model.py           # writes into runs/examples/vision_model
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.vision.models import resnet18

from lowbit.data import open_digits
from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine, compare_outputs, export_onnx
from lowbit.nn import calibrate, preparation_of, prepare, refresh_batch_norm
from lowbit.recipe import make_recipe

# The same can be a file, or come with lowbit: load_recipe("qat_w8a8"). Later rules override earlier ones.
RECIPE = {
    "rules": [
        {
            "forward": {
                "input": {"grid": "int8", "sign": "auto", "scaling": "moving_average", "clip": "pact"},
                "weight": {"grid": "int8-narrow", "granularity": "N"},
            }
        },
        # Images have a known range: nothing to learn there.
        {"match": {"index": 0}, "forward": {"input": {"scaling": "fixed", "clip": "none"}}},
        {"match": {"name": "fc"}, "skip": True},  # the classifier stays in fp32
    ],
    "calibration": {"steps": 4},
}


def digits(split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits that come with lowbit's packages, [N, 3, 16, 16] from -1 to 1, and their labels."""
    data = open_digits(split)
    images = np.stack([data.image(i)[::2, ::2] for i in range(count)]).transpose(0, 3, 1, 2)
    labels = np.array([data.label(i) for i in range(count)])
    return images.astype("float32") / 127.5 - 1, labels


def train(net: nn.Layer, images: np.ndarray, labels: np.ndarray, *, epochs: int, rate: float) -> None:
    optimizer = paddle.optimizer.Adam(rate, parameters=net.parameters())
    net.train()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        for some in np.array_split(order, len(images) // 48):
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
    images, labels = digits("train", 576)
    test_images, test_labels = digits("val", 120)

    net = resnet18(num_classes=10)  # yours is trained already: load its weights here, or after prepare
    prepare(net, make_recipe(RECIPE))
    print(preparation_of(net))
    some = [paddle.to_tensor(images[start : start + 48]) for start in range(0, 192, 48)]
    calibrate(net, some)
    train(net, images, labels, epochs=2, rate=0.001)  # short: to see that it works, not to be good
    refresh_batch_norm(net, some)  # in 24 steps its running averages have not caught up with the weights
    print(f"quantized  {accuracy(net, test_images, test_labels):.2%}")

    made = export_onnx(net, folder / "model.onnx", model_name="resnet18", image_shape=(3, 16, 16))
    print(f"model.onnx is {made.fp32_size / made.size:.1f} times smaller than in fp32")
    for engine in (OnnxRuntimeEngine(made.path), OpenVinoEngine(made.path)):
        print(f"{engine.name}: {compare_outputs(net, engine, test_images)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/examples/vision_model"))
