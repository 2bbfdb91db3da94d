"""From a model to an ONNX file whose integers are those that were trained, compared before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import paddle
from paddle import nn

from lowbit.deploy.compare import compare_logits
from lowbit.deploy.engines.onnxruntime_engine import OnnxRuntimeEngine
from lowbit.deploy.export import check_finite, check_image_shape, drafting, expected_logits, put_in_place
from lowbit.deploy.onnx.fold import DeployedLayer, attach_layers, deployed_layers, fold
from lowbit.deploy.onnx.graph import Graph, QuantizedConstant, to_onnx
from lowbit.deploy.onnx.qdq import Quantized, quantize
from lowbit.deploy.onnx.targets import Target, describe_form, resolve_target
from lowbit.deploy.onnx.trace import called_layers, read_program, trace
from lowbit.deploy.save_program import ModelInputs, answers_of
from lowbit.digest import ONNX, add_digest
from lowbit.errors import LowbitError
from lowbit.nn import (
    DeployedOperand,
    deployed_edges,
    has_quantized_layers,
    quantization_mode,
    reparameterized,
)

_TOLERANCE = 1e-3  # of the largest logit, in fp32
_CONSTANT = (
    "forward probably computes a value in Python (a batch size, a number taken out of a tensor, a random "
    "number) that became a constant"
)
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
    image_shape: tuple[int, int, int] | None = None,
    inputs: ModelInputs | None = None,
    target: str | None = None,
    quantized: bool = True,
    checkpoint: str | None = None,
    any_size: bool = False,
) -> OnnxModel:
    """Write the model as ONNX for batches of any size: quantized (QDQ), or with `quantized=False` in fp32.

    The model takes images of `image_shape`, or whatever `inputs` says; with both, `inputs` are images to
    compare on, in the place of random ones. Batch norm is folded. The file is checked, run in ONNX Runtime
    and compared with the model before it is put in place. The model itself stays as it is, also in the
    middle of training. `checkpoint` is the SHA-256 of the file that the model is from, which is kept in the
    ONNX file. With `any_size` the file takes images of any height and width that the model takes; it is
    compared on images of two sizes.

    made = export_onnx(net, "inference.onnx", model_name="resnet18", image_shape=(3, 224, 224))
    print(f"{made.fp32_size / made.size:.1f} times smaller")
    """
    path = Path(path)
    model = model._layers if isinstance(model, paddle.DataParallel) else model
    if image_shape is not None:
        check_image_shape(image_shape)
        inputs = replace(inputs or ModelInputs.images(image_shape), any_size=any_size)
    elif any_size:
        raise LowbitError("any_size is for models that take images: give image_shape")
    elif inputs is None:
        raise LowbitError("export_onnx needs to know what the model takes: give image_shape or inputs")
    check_finite(model, model_name)
    if quantized and not has_quantized_layers(model):
        raise LowbitError(
            f"{model_name} has no quantized layer: prepare it with a recipe first, or export it in fp32"
        )
    resolved = resolve_target(target) if quantized else None
    with quantization_mode(model, "quantized" if quantized else "full"):
        if image_shape is not None:
            expected = [expected_logits(model, inputs.examples[0], model_name)]
        else:
            expected = answers_of(model, inputs.examples, model_name)
        compared = [(inputs, expected)]
        if inputs.any_size:
            larger = ModelInputs.images(_larger(inputs.examples[0].shape[1:]))
            compared.append((larger, [expected_logits(model, larger.examples[0], model_name)]))
    model = reparameterized(model)
    program = trace(model, inputs.specs(), model_name)
    called = called_layers(program)  # a layer that evaluation does not call has no scales, and needs none
    layers = deployed_layers(model, called, quantized=quantized)
    edges = deployed_edges(model) if quantized else {}
    written, notes = _build(program, layers, edges, resolved, model_name, checkpoint)
    fp32 = written
    if quantized:
        fp32, _ = _build(program, deployed_layers(model, called, quantized=False), {}, None, model_name)
    with drafting(path.parent, str(path)) as draft:
        content = add_digest(written.SerializeToString(), ONNX)
        (draft / path.name).write_bytes(content)
        for given, answers in compared:
            line = _compare(model, draft / path.name, given, answers, model_name, quantized)
        notes.append(line)
        put_in_place(draft, path.parent, [path.name])
    size = fp32.ByteSize() + ONNX.length  # as if it had been written, too
    return OnnxModel(path, len(content), size, resolved, tuple(notes))


def _larger(shape: Sequence[int]) -> tuple[int, int, int]:
    """Images of another size, not square, whose sides are multiples of 32 if those of `shape` are."""
    channels, height, width = shape
    return channels, height + 32, width + 64


def _build(
    program: Any,
    layers: dict[str, DeployedLayer],
    edges: dict[str, DeployedOperand],
    target: Target | None,
    model_name: str,
    checkpoint: str | None = None,
) -> tuple[onnx.ModelProto, list[str]]:
    graph = read_program(program)
    attach_layers(graph, layers)
    notes = fold(graph)
    done, form = quantize(graph, layers, edges, target), "fp32"
    if target is not None:
        weights = [layer.weight for layer in layers.values() if isinstance(layer.weight, QuantizedConstant)]
        inputs = [layer.input for layer in layers.values() if layer.input]
        form = describe_form(target, weights, inputs, edges=bool(edges))
    _name_tensors(graph)
    description = _description(graph, layers, done, target, form) | {"checkpoint": checkpoint}
    return to_onnx(graph, model_name, description), [form, *notes, *done.notes]


def _name_tensors(graph: Graph) -> None:
    """The graph's output is `logits`, several are `output0` and so on; a layer's has the layer's name."""
    for number, output in enumerate(list(graph.outputs)):
        if output in graph.inputs or output in graph.constants:
            graph.outputs[number] = graph.add("Identity", [output], shape=graph.shapes[output])
    alone = len(graph.outputs) == 1
    for number in range(len(graph.outputs)):
        graph.rename(graph.outputs[number], "logits" if alone else f"output{number}")
    for layer, tensor in list(graph.layer_outputs.items()):
        if tensor not in graph.outputs and tensor not in graph.inputs and tensor not in graph.constants:
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


def _compare(
    model: nn.Layer,
    draft: Path,
    inputs: ModelInputs,
    expected: list[np.ndarray],
    model_name: str,
    quantized: bool,
) -> str:
    """Run the draft in ONNX Runtime, as it is and with everything merged; a line on how close it comes."""
    for optimize in (False, True):
        engine = OnnxRuntimeEngine(draft, optimize=optimize)
        for batch in sorted({1, inputs.batch}):  # a batch's size that became a constant shows in the first
            answers = engine.run_all(inputs.first(batch))
            wanted = [one[:batch] for one in expected] if batch < inputs.batch else expected
            for found, own in zip(answers, wanted, strict=True):
                if not _is_close(found, own, quantized):
                    why = _amplified_rounding(model, engine, inputs.first(batch)) if quantized else None
                    raise LowbitError(
                        f"{model_name} cannot be exported to ONNX: ONNX Runtime answers differently from the "
                        f"model ({_difference(own, found)}). {why or _CONSTANT}; nothing was written"
                    )
    return f"{engine.name} compared with the model: {_difference(expected[0], answers[0])}"


def _amplified_rounding(model: nn.Layer, engine: OnnxRuntimeEngine, inputs: list[np.ndarray]) -> str | None:
    """What to say where every layer computes what the model does, and single steps of rounding become large
    on their way; None where a layer is wrong, or where layers cannot be compared."""
    # Here and not above: verify itself exports.
    from lowbit.deploy.verify.layer_differences import OnnxGraph, compare_layers, first_wrong_layers

    graph = OnnxGraph(engine.path)
    if len(inputs) != 1 or inputs[0].ndim != 4 or not graph.inputs:
        return None
    try:
        rows = compare_layers(model, engine, graph, inputs)
    except LowbitError:  # shapes differ: no rounding
        return None
    if first_wrong_layers(rows) or not any(row.altogether.unequal for row in rows):
        return None
    worst = min(rows, key=lambda row: row.altogether.sqnr)
    return (
        "No layer is wrong by itself: differences of rounding, single steps of a grid, grow from layer to "
        f"layer (to an SQNR of {worst.altogether.sqnr:.0f} dB at {worst.name}). A network in so few bits "
        "amplifies them if it was not trained so, and no two engines would agree on it: train it with the "
        "quantization, or use more bits"
    )


def _difference(expected: np.ndarray, answers: np.ndarray) -> str:
    if expected.shape == answers.shape and expected.ndim == 2:
        return str(compare_logits(expected, answers))
    if expected.shape != answers.shape:
        return f"a tensor {list(answers.shape)}, the model {list(expected.shape)}"
    return f"largest difference {np.abs(answers.astype(np.float64) - expected).max():.3g}"


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
