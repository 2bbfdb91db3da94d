"""Write a quantized model for Paddle Inference in int8, and compare it before it is put in place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paddle
from paddle import nn

from lowbit.config.transform_ops import TransformOp
from lowbit.deploy.engines.paddle_engine import PaddleEngine
from lowbit.deploy.export import (
    ExportedModel,
    check_finite,
    check_image_shape,
    check_prepared_size,
    describe_draft,
    drafting,
    expected_logits,
    publish,
)
from lowbit.deploy.paddle_int8.integer_conv import emit, place_integer_convs
from lowbit.deploy.paddle_int8.merge import merge
from lowbit.deploy.paddle_int8.program import trace, write_program
from lowbit.errors import LowbitError
from lowbit.nn import edge_quantizers, eval_mode, is_quantized

# The difference's RMS over that of the answers. The sums are exact; but where a value lies on the edge of two
# integers, a float that is rounded otherwise in its last bit moves it by a step, and from layer to layer
# more of them. Measured: 0 in small networks, 0.11 in MobileNetV2, whose quantization itself costs 0.15 (and
# 0.11 in ONNX Runtime, too). What is merged wrongly is off by 1 or more.
_TOLERANCE = 0.25
_FILE_NAME = "inference"


@dataclass(frozen=True)
class Int8Export:
    """The files, and the layers that multiply integers."""

    model: ExportedModel
    layers: list[str]
    fp32_size: int  # bytes of the same parameters in fp32


def export_paddle_int8(
    model: nn.Layer,
    directory: str | Path,
    *,
    model_name: str,
    image_shape: tuple[int, int, int],
    transform_ops: Sequence[TransformOp],
    classes: Sequence[str],
    checkpoint: str | None = None,
) -> Int8Export:
    """Write `inference.pdmodel`, `.pdiparams` (weights in int8) and `.yml` for oneDNN on a CPU with VNNI.

    Every quantized layer multiplies the integers that were trained, its batch norm merged into its scale. A
    LowbitError says which one cannot, that this processor cannot run them exactly, or that the answers are
    not the model's.

    export_paddle_int8(net, "export/int8", model_name="resnet18", image_shape=(3, 224, 224),
                       transform_ops=ops, classes=names)
    """
    directory = Path(directory)
    model = model._layers if isinstance(model, paddle.DataParallel) else model
    check_image_shape(image_shape)
    check_prepared_size(transform_ops, image_shape)
    check_finite(model, model_name)
    with eval_mode(model):
        layers = _quantized_layers(model, model_name)
        images = np.random.default_rng(0).standard_normal((3, *image_shape), dtype=np.float32)
        logits = expected_logits(model, images, model_name, classes)
        traced = trace(model, layers, image_shape)
        nodes = merge(traced.program, place_integer_convs(traced.program, traced.layers))
        program = emit(traced.program, nodes)
    with drafting(directory, f"the int8 model to {directory}") as draft:
        write_program(program, draft / _FILE_NAME)
        describe_draft(
            draft,
            _FILE_NAME,
            model_name=model_name,
            image_shape=image_shape,
            transform_ops=transform_ops,
            classes=classes,
            checkpoint=checkpoint,
            int8=True,
        )
        _compare(draft, images, logits, model_name)
        exported = publish(draft, directory, _FILE_NAME)
    names = [layer.weight_quantizer.layer_name for layer in layers]
    return Int8Export(exported, names, 4 * sum(math.prod(p.shape) for p in model.parameters()))


def _quantized_layers(model: nn.Layer, model_name: str) -> list[nn.Layer]:
    layers = [layer for layer in model.sublayers(include_self=True) if is_quantized(layer)]
    if not layers:
        raise LowbitError(f"{model_name} is not quantized: there are no integers to write it in int8 with")
    if edge_quantizers(model):
        raise LowbitError(
            f"{model_name} quantizes the tensors between its layers, too (outputs: quantized), which "
            "Paddle's int8 form keeps in floats: deploy its ONNX file, or quantize with outputs: full"
        )
    weights = Counter(layer.weight.name for layer in layers)
    for layer in layers:
        if weights[layer.weight.name] > 1:
            name = layer.weight_quantizer.layer_name
            raise LowbitError(f'layer "{name}" shares its weight with another one: int8 cannot have that')
    return layers


def _compare(draft: Path, images: np.ndarray, logits: np.ndarray, model_name: str) -> None:
    engine = PaddleEngine(draft, file_name=_FILE_NAME)
    for batch in (3, 1):
        answer, expected = engine.run(images[:batch]), logits[:batch]
        signal = max(float(np.std(expected)), 1e-30)
        if answer.shape != expected.shape or not _rms(answer - expected) <= _TOLERANCE * signal:
            raise LowbitError(
                f"{model_name} cannot be written in int8: Paddle Inference answers differently from the "
                f"model for a batch of {batch}; nothing was written. The other forms compute what was trained"
            )


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
