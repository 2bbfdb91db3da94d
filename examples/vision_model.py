"""ResNet18 of paddle.vision in 8 bits, by a recipe with rules for single layers: trained, exported, verified.

python examples/vision_model.py           # writes into runs/examples/vision_model
"""

from __future__ import annotations

import sys
from pathlib import Path

import paddle
from digits_task import accuracy, digits, train
from paddle.vision.models import resnet18

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


def main(folder: Path) -> None:
    paddle.seed(0)
    images, labels = digits("train", 576)
    test_images, test_labels = digits("val", 120)

    net = resnet18(num_classes=10)  # yours is trained already: load its weights here, or after prepare
    prepare(net, make_recipe(RECIPE))
    print(preparation_of(net))
    some = [paddle.to_tensor(images[start : start + 48]) for start in range(0, 192, 48)]
    calibrate(net, some)
    optimizer = paddle.optimizer.Adam(0.001, parameters=net.parameters())
    # Short: to see that it works, not to be good.
    train(net, images, labels, epochs=2, optimizer=optimizer, batch_size=48)
    refresh_batch_norm(net, some)  # in 24 steps its running averages have not caught up with the weights
    print(f"quantized  {accuracy(net, test_images, test_labels):.2%}")

    made = export_onnx(net, folder / "model.onnx", model_name="resnet18", image_shape=(3, 16, 16))
    print(f"model.onnx is {made.fp32_size / made.size:.1f} times smaller than in fp32")
    for engine in (OnnxRuntimeEngine(made.path), OpenVinoEngine(made.path)):
        print(f"{engine.name}: {compare_outputs(net, engine, test_images)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/examples/vision_model"))
