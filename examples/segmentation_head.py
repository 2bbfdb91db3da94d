"""A segmentation network with Conv2DTranspose in 4 bits: quantize, train, export, compare pixel by pixel.

python examples/segmentation_head.py      # writes into runs/examples/segmentation_head
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
from lowbit.deploy import PaddleEngine

SIDE = 32
CONFIG = {
    "weight_bits": 4,
    "activation_bits": 4,
    "weight_quantize_type": "channel_wise_lsq_weight",
    "activation_quantize_type": "lsq_act",
    "quantizable_layer_type": ["Conv2D", "Conv2DTranspose"],  # the second is not in the default
}


class Segmenter(nn.Layer):
    """Two convolutions down, two transposed ones up: a class for every pixel."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.down1 = nn.Conv2D(3, 16, 3, stride=2, padding=1)
        self.norm1 = nn.BatchNorm2D(16)
        self.down2 = nn.Conv2D(16, 32, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2D(32)
        self.up1 = nn.Conv2DTranspose(32, 16, 4, stride=2, padding=1)
        self.norm3 = nn.BatchNorm2D(16)
        self.up2 = nn.Conv2DTranspose(16, classes, 4, stride=2, padding=1)

    def forward(self, x):
        fine = F.relu(self.norm1(self.down1(x)))
        coarse = F.relu(self.norm2(self.down2(fine)))
        return self.up2(F.relu(self.norm3(self.up1(coarse))) + fine)


def shapes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images with a light square and a dark disc, and the class of each pixel: 0, 1, 2."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    images = rng.normal(0, 0.3, (count, 3, SIDE, SIDE)).astype("float32")
    masks = np.zeros((count, SIDE, SIDE), "int64")
    for image, mask in zip(images, masks, strict=True):
        for shape in (1, 2):
            size, (y, x) = rng.integers(4, 8), rng.integers(8, SIDE - 8, 2)
            away = np.abs(rows - y), np.abs(columns - x)
            inside = np.maximum(*away) < size if shape == 1 else np.hypot(*away) < size
            mask[inside] = shape
            image[:, inside] += rng.uniform(0.2, 1, (3, 1)) * (1 if shape == 1 else -1)
    return images, masks


def train(net: nn.Layer, images: np.ndarray, masks: np.ndarray, *, epochs: int, rate: float) -> None:
    optimizer = paddle.optimizer.Adam(rate, parameters=net.parameters())
    net.train()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        for some in np.array_split(order, len(images) // 16):
            logits = net(paddle.to_tensor(images[some]))
            loss = F.cross_entropy(logits, paddle.to_tensor(masks[some]), axis=1)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()


def logits_of(net: nn.Layer, images: np.ndarray) -> np.ndarray:
    net.eval()
    with paddle.no_grad():
        return net(paddle.to_tensor(images)).numpy()


def mean_iou(logits: np.ndarray, masks: np.ndarray) -> float:
    """Intersection over union, the mean of the classes."""
    found = logits.argmax(1)
    pairs = [(found == index, masks == index) for index in range(logits.shape[1])]
    return float(np.mean([(a & b).sum() / (a | b).sum() for a, b in pairs]))


def main(folder: Path) -> None:
    paddle.seed(0)
    images, masks = shapes(512, seed=0)
    test_images, test_masks = shapes(64, seed=1)

    net = Segmenter()
    train(net, images, masks, epochs=3, rate=0.003)
    print(f"fp32       mean IoU {mean_iou(logits_of(net, test_images), test_masks):.3f}")

    quanter = QAT(config=CONFIG)
    quanter.quantize(net)
    train(net, images, masks, epochs=2, rate=0.001)
    expected = logits_of(net, test_images)
    print(f"quantized  mean IoU {mean_iou(expected, test_masks):.3f}")

    quanter.save_quantized_model(net, f"{folder}/model", input_spec=[InputSpec([None, 3, SIDE, SIDE])])
    answers = PaddleEngine(folder, file_name="model").run(test_images)
    same = (answers.argmax(1) == expected.argmax(1)).mean()
    print(f"exported   mean IoU {mean_iou(answers, test_masks):.3f}, same class for {same:.2%} of the pixels")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/examples/segmentation_head"))
