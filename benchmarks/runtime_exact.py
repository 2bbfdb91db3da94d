"""Whether lowbit's runtime gives a quantized network's classes and integers on CIFAR-10's test images.

    LOWBIT_DATA=FOLDER python benchmarks/runtime_exact.py [--recipe ptq_w7a8] [--integers 1000]

FOLDER holds resnet20_cifar10.safetensors and the folder cifar-10-batches-bin. ResNet20 is quantized without
training and exported; the network in Paddle and the file in the runtime then see the same images. On the
first `--integers` of them, the integers that every layer reads are compared one by one. Exits with 1 if a
class differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import paddle
from accuracy import load, normalize

import lowbit
from lowbit.deploy.onnx import export_onnx
from lowbit.deploy.verify.agreement import IntegerReference
from lowbit.kernels import kernels

BATCH = 100
CALIBRATION = 320


def compare(net: paddle.nn.Layer, path: Path, images: np.ndarray, integers: int) -> dict[str, object]:
    """Counts over all images; `unequal` is of the integers that layers read."""
    engine, exact = lowbit.Engine(path), IntegerReference(net, path)
    same, largest, compared, unequal = 0, 0.0, 0, 0
    spent = {"network": 0.0, "runtime": 0.0}
    for at in range(0, len(images), BATCH):
        batch = normalize(images[at : at + BATCH]).numpy()
        start = time.perf_counter()
        own = net(paddle.to_tensor(batch)).numpy()
        middle = time.perf_counter()
        found = engine(batch)
        spent["network"] += middle - start
        spent["runtime"] += time.perf_counter() - middle
        same += int((found.argmax(1) == own.argmax(1)).sum())
        largest = max(largest, float(np.abs(found - own).max()))
        if at < integers:
            exact.model_answer(batch)
            (_, seen, _), (_, computed) = exact._own, exact._by_runtime(batch)
            compared += sum(one.size for one in seen.values())
            unequal += sum(int((seen[name] != computed[name]).sum()) for name in seen)
        print(f"\r{at + len(batch)} images", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {
        "images": len(images),
        "same_class": same,
        "largest_difference": largest,
        "integers": compared,
        "unequal": unequal,
        "seconds": {name: round(one, 1) for name, one in spent.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="ptq_w7a8")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--integers", type=int, default=1000)
    chosen = parser.parse_args()
    if "LOWBIT_DATA" not in os.environ:
        parser.error("give the folder of weights and images: LOWBIT_DATA=FOLDER")
    with lowbit.accelerate(), tempfile.TemporaryDirectory() as folder, paddle.no_grad():
        net, calibration, images, _ = load("resnet20", Path(os.environ["LOWBIT_DATA"]), CALIBRATION)
        batches = [normalize(calibration[at : at + 32]) for at in range(0, len(calibration), 32)]
        lowbit.quantize(net, chosen.recipe, data=batches)
        net.eval()
        path = Path(folder) / "inference.onnx"
        export_onnx(net, path, model_name="resnet20", image_shape=(3, 32, 32))
        found = compare(net, path, images[: chosen.images], chosen.integers)
    print(json.dumps({"recipe": chosen.recipe, "instructions": kernels().variant} | found))
    sys.exit(found["same_class"] != found["images"])


if __name__ == "__main__":
    main()
