"""`lowbit bench runtime`: exported models in lowbit's runtime, ONNX Runtime and OpenVINO, all in turns.

Models have random weights and are calibrated on random images: nothing here is about accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from lowbit.api.quantize import calibrate, quantize
from lowbit.deploy.engines import LowbitEngine, open_onnx
from lowbit.deploy.onnx import export_onnx, resolve_target
from lowbit.deploy.verify.candidates import installed_engines
from lowbit.deploy.verify.latency import time_in_turns
from lowbit.errors import LowbitError
from lowbit.models import build_model
from lowbit.recipe.load import recipe_file_values

MODELS = ("mobilenet_v2", "resnet18", "mobilenet_v3_small")
_FOUR_BITS = ("resnet18",)  # also with 4-bit weights and activations
_SIDE, _CLASSES, _IMAGES = 224, 1000, 8
_SECONDS = 20.0
NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "lowbit": "lowbit"}

Sides = dict[str, Callable[[], object]]


def write_models(name: str, folder: Path, tell: Callable[[str], None] = print) -> dict[str, Path]:
    """A model in fp32, with the bits that suit this processor and, where it is usual, in 4 bits.

    4 bits are left out, with a line to `tell`, where the export finds that engines would not agree: random
    weights may amplify differences of rounding.

    >>> list(write_models("resnet18", Path("/tmp")))
    ['fp32', 'W8A8', 'W4A4']
    """
    bits = 7 if resolve_target(None) == "avx2" else 8
    recipes: dict[str, dict[str, Any] | None] = {"fp32": None, f"W{bits}A8": _eight_bits(bits)}
    if name in _FOUR_BITS:
        recipes["W4A4"] = recipe_file_values("qat_w4a4") | {"outputs": "quantized"}
    images = np.random.default_rng(0).standard_normal((_IMAGES, 3, _SIDE, _SIDE), dtype=np.float32)
    files = {}
    for word, recipe in recipes.items():
        net = _network(name, images)
        with redirect_stdout(StringIO()):
            if recipe is not None:
                _quantize(net, recipe, images)
        path, shape = folder / f"{name}-{word}.onnx", (3, _SIDE, _SIDE)
        try:
            export_onnx(net, path, model_name=name, image_shape=shape, quantized=recipe is not None)
            files[word] = path
        except LowbitError as error:
            if word != "W4A4":
                raise
            tell(f"W4A4 is left out: {error}")
    return files


def _eight_bits(bits: int) -> dict[str, Any]:
    recipe = recipe_file_values(f"ptq_w{bits}a8")
    recipe["rules"][0]["forward"]["input"]["observer"] = "minmax"
    return recipe


def _network(name: str, images: np.ndarray[Any, Any]) -> nn.Layer:
    """With the batch norm statistics of these images: values stay in the range of trained networks."""
    paddle.seed(0)
    net = build_model(name, _CLASSES)
    for layer in net.sublayers():
        if isinstance(layer, nn.BatchNorm2D):
            layer._momentum = 0.0
    net.train()
    with paddle.no_grad():
        net(paddle.to_tensor(images))
    net.eval()
    return net


def _quantize(net: nn.Layer, recipe: dict[str, Any], images: np.ndarray[Any, Any]) -> None:
    if "correct_bias" in recipe.get("calibration", {}):
        quantize(net, recipe, data=[images])
        return
    quantize(net, recipe, example=paddle.to_tensor(images))
    net.eval()
    calibrate(net, [images])


def engine_sides(
    files: dict[str, Path], batch: int, threads: int
) -> tuple[Sides, Sequence[str], dict[str, tuple[int, int]]]:
    """A function per file and engine, the names of those in fp32, and the memory of lowbit's runtime.

    lowbit's runtime has no fast fp32; 4 bits run in integers in it alone.
    """
    images = np.random.default_rng(1).standard_normal((batch, 3, _SIDE, _SIDE), dtype=np.float32)
    sides: Sides = {}
    memory = {}
    for key in installed_engines(NAMES)[0]:
        for word, path in files.items():
            if word == "fp32" if key == "lowbit" else word == "W4A4":
                continue
            engine = open_onnx(path, key, threads=threads)
            name = f"{NAMES[key]} {word}"
            sides[name] = partial(engine.run, images)
            if isinstance(engine, LowbitEngine):
                memory[name] = engine.memory(images)
    return sides, [name for name in sides if name.endswith(" fp32")], memory


def time_sides(sides: Sides, rounds: int) -> dict[str, list[float]]:
    """Seconds of a run of each side, an entry per round."""
    return time_in_turns(sides, rounds=rounds, seconds=_SECONDS)
