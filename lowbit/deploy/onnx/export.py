"""From a model to an ONNX file whose integers are those that were trained, compared before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import paddle
from paddle import nn

from lowbit.deploy.compare import compare_logits
from lowbit.deploy.draft import check_finite, drafting, put_in_place
from lowbit.deploy.engines.onnxruntime_engine import OnnxRuntimeEngine
from lowbit.deploy.expected import check_image_shape, expected_logits
from lowbit.deploy.onnx.fold import fold
from lowbit.deploy.onnx.graph import Graph, QuantizedConstant
from lowbit.deploy.onnx.layers import DeployedLayer, attach_layers, deployed_layers
from lowbit.deploy.onnx.quantize import Quantized, quantize
from lowbit.deploy.onnx.read_program import read_program
from lowbit.deploy.onnx.target import Target, describe_form, resolve_target
from lowbit.deploy.onnx.trace import trace
from lowbit.deploy.onnx.write import to_onnx
from lowbit.digest import ONNX, add_digest
from lowbit.errors import LowbitError
from lowbit.layers import eval_mode, tested_as

_TOLERANCE = 1e-3  # of the largest logit, in fp32
_QUANTIZED_TOLERANCE = 0.2  # of the logits' mean distance from their mean


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file, its size in bytes and that of the same network in fp32, and what is worth knowing."""

    path: Path
    size: int
    fp32_size: int
    target: Target | None  # None where nothing is quantized
    notes: tuple[str, ...]


def export_onnx(
    model: nn.Layer,
    path: str | Path,
    *,
    model_name: str,
    image_shape: tuple[int, int, int],
    target: str | None = None,
    quantized: bool = True,
    checkpoint: str | None = None,
) -> OnnxModel:
    """Write the model as ONNX for batches of any size: quantized (QDQ), or with `quantized=False` in fp32.

    Batch norm is folded. The file is checked, run in ONNX Runtime and compared with the model before it is
    put in place. The model itself stays as it is, also in the middle of training. `checkpoint` is the SHA-256
    of the file that the model is from, which is kept in the ONNX file.

    made = export_onnx(net, "inference.onnx", model_name="resnet18", image_shape=(3, 224, 224))
    print(f"{made.fp32_size / made.size:.1f} times smaller")
    """
    path = Path(path)
    model = model._layers if isinstance(model, paddle.DataParallel) else model
    check_image_shape(image_shape)
    check_finite(model, model_name)
    layers = deployed_layers(model, quantized=quantized)
    if quantized and not layers:
        raise LowbitError(
            f"{model_name} has no quantized layer: prepare it with a recipe first, or export it in fp32"
        )
    resolved = resolve_target(target) if quantized else None
    images = np.random.default_rng(0).standard_normal((3, *image_shape), dtype=np.float32)
    with eval_mode(model):
        if quantized:
            expected = expected_logits(model, images, model_name)
        else:
            with tested_as(model, "full"):
                expected = expected_logits(model, images, model_name)
    program = trace(model, image_shape, model_name)
    written, notes = _build(program, layers, resolved, model_name, checkpoint)
    fp32 = written
    if quantized:
        fp32, _ = _build(program, deployed_layers(model, quantized=False), None, model_name)
    with drafting(path.parent, str(path)) as draft:
        content = add_digest(written.SerializeToString(), ONNX)
        (draft / path.name).write_bytes(content)
        notes.append(_compare(draft / path.name, images, expected, model_name, quantized))
        put_in_place(draft, path.parent, [path.name])
    size = fp32.ByteSize() + ONNX.length  # as if it had been written, too
    return OnnxModel(path, len(content), size, resolved, tuple(notes))


def _build(
    program: Any,
    layers: dict[str, DeployedLayer],
    target: Target | None,
    model_name: str,
    checkpoint: str | None = None,
) -> tuple[onnx.ModelProto, list[str]]:
    graph = read_program(program)
    attach_layers(graph, layers)
    notes = fold(graph)
    done, form = quantize(graph, layers, target), "fp32"
    if target is not None:
        weights = [layer.weight for layer in layers.values() if isinstance(layer.weight, QuantizedConstant)]
        form = describe_form(target, weights, [layer.input for layer in layers.values() if layer.input])
    _name_tensors(graph)
    description = _description(graph, layers, done, target, form) | {"checkpoint": checkpoint}
    return to_onnx(graph, model_name, description), [form, *notes, *done.notes]


def _name_tensors(graph: Graph) -> None:
    """The graph's output is `logits`, a layer's has the layer's name."""
    if graph.output == graph.input or graph.output in graph.constants:
        graph.output = graph.add("Identity", [graph.output], shape=graph.shapes[graph.output])
    graph.output = graph.rename(graph.output, "logits")
    for layer, tensor in list(graph.layer_outputs.items()):
        if tensor != graph.output and tensor != graph.input and tensor not in graph.constants:
            graph.rename(tensor, layer)


def _description(
    graph: Graph, layers: dict[str, DeployedLayer], done: Quantized, target: Target | None, form: str
) -> dict[str, Any]:
    """What is said of the network in the file: where each layer's tensors are."""
    found: dict[str, Any] = {}
    for call, output in graph.layer_outputs.items():
        found[call] = {"output": output}
        layer = layers.get(call.partition(":")[0])
        if call in done.inputs:
            found[call] |= {"input": done.inputs[call], "input_bits": layer.input.bits}
        if layer is not None and isinstance(layer.weight, QuantizedConstant):
            found[call]["bits"] = layer.weight.bits
    return {"layers": found, "target": target, "form": form}


def _compare(draft: Path, images: np.ndarray, expected: np.ndarray, model_name: str, quantized: bool) -> str:
    """Run the draft in ONNX Runtime, as it is and with everything merged; a line on how close it comes."""
    for optimize in (False, True):
        engine = OnnxRuntimeEngine(draft, optimize=optimize)
        for batch in (1, len(images)):  # a batch's size that became a constant shows in the first
            answers = engine.run(images[:batch])
            if not _is_close(answers, expected[:batch], quantized):
                found = compare_logits(expected[:batch], answers)
                raise LowbitError(
                    f"{model_name} cannot be exported to ONNX: ONNX Runtime answers differently from the "
                    f"model ({found}). forward probably computes a value in Python (a batch size, a number "
                    "taken out of a tensor, a random number) that became a constant; nothing was written"
                )
    return f"{engine.name} beside the model, on noise: {compare_logits(expected, answers)}"


def _is_close(answers: np.ndarray, expected: np.ndarray, quantized: bool) -> bool:
    """Float rounding moves single integers by a step, and deep networks make more of it; a mistake is larger.

    So the mean difference counts for a quantized model, and the largest for one in fp32.
    """
    if answers.shape != expected.shape:
        return False
    difference = np.abs(answers.astype(np.float64) - expected)
    largest = float(np.abs(expected).max())
    if not quantized:
        return bool(difference.max() <= _TOLERANCE * largest)
    spread = max(float(np.abs(expected - expected.mean()).mean()), _TOLERANCE * largest)
    return bool(difference.mean() <= _QUANTIZED_TOLERANCE * spread)
