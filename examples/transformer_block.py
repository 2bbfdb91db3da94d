"""A Transformer block trained in 4 bits, gradients too, then deployed as ONNX with int4 weights.

python examples/transformer_block.py      # writes into runs/examples/transformer_block
"""

from __future__ import annotations

import sys
from pathlib import Path

import paddle
from digits_task import accuracy, digits, train
from paddle import nn

from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine, compare_outputs, export_onnx
from lowbit.nn import fix_inputs, fixed_copy, preparation_of, prepare, quantization_mode
from lowbit.recipe import load_recipe

RECIPE = "qt_w4a4g4"
PATCH, WIDTH = 4, 32


class Net(nn.Layer):
    """Patches of 4x4 pixels as tokens, one encoder block, and the mean of its tokens to a Linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.place = self.create_parameter([1, 16, WIDTH], default_initializer=nn.initializer.Normal(0, 0.02))
        self.block = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=2 * WIDTH, dropout=0.0)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = x.reshape([-1, 3, 4, PATCH, 4, PATCH]).transpose([0, 2, 4, 1, 3, 5]).flatten(3).flatten(1, 2)
        return self.head(self.block(self.embed(x) + self.place).mean(1))


def main(folder: Path) -> None:
    paddle.seed(0)
    images, labels = digits("train")
    test_images, test_labels = digits("val")

    net = prepare(Net(), load_recipe(RECIPE))  # from scratch: weights, activations and gradients in 4 bits
    print(preparation_of(net))
    optimizer = paddle.optimizer.Adam(0.003, parameters=net.parameters())
    train(net, images, labels, epochs=6, optimizer=optimizer)
    print(f"trained as W4A4G4, tested as W4A4  {accuracy(net, test_images, test_labels):.2%}")
    with quantization_mode(net, "full"):
        print(f"the same weights in full precision {accuracy(net, test_images, test_labels):.2%}")

    # Training chose a scale for every sample anew, which engines cannot: fixed ones, from training images.
    fixed = fixed_copy(net, steps=8)
    fix_inputs(net, fixed, [paddle.to_tensor(images[start : start + 32]) for start in range(0, 256, 32)])
    print(f"with the scales of inputs fixed    {accuracy(fixed, test_images, test_labels):.2%}")

    made = export_onnx(fixed, folder / "model.onnx", model_name="Net", image_shape=(3, 16, 16))
    print(f"model.onnx is {made.fp32_size / made.size:.1f} times smaller than in fp32")
    for engine in (OnnxRuntimeEngine(made.path), OpenVinoEngine(made.path)):
        print(f"{engine.name}: {compare_outputs(fixed, engine, test_images)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/examples/transformer_block"))
