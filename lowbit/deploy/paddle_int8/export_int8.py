"""Write a quantized model for Paddle Inference in int8, and compare it before it is put in place."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from lowbit.deploy.paddle_int8.integer_conv import (
    LOWEST_HARD_SWISH,
    FusedActivation,
    IntegerConv,
    Node,
    emit,
    place_integer_convs,
)
from lowbit.deploy.paddle_int8.program import Program, ProgramOp, trace, write_program
from lowbit.errors import LowbitError
from lowbit.nn import DeployedOperand, edge_quantizers, eval_mode, is_quantized


def merge(program: Program, nodes: list[Node]) -> list[Node]:
    """The nodes with everything merged that leaves what is computed as it is, but for the rounding of floats.

    A value that is used in two places is never merged away.
    """
    nodes = list(nodes)
    for step in (_norm, _bias, _shortcut, _activation):
        nodes = _merge_followers(program, nodes, step)
    _put_on_next_grid(program, nodes)
    return nodes


def _merge_followers(program: Program, nodes: list[Node], step: Callable[..., Any]) -> list[Node]:
    """Let `step(program, conv, follower)` take in the only reader of each convolution's output.

    The convolution moves to the follower's place, where everything that either of them reads is there.
    """
    readers = _readers(program, nodes)
    taken: dict[int, IntegerConv] = {}  # by the follower's place
    for node in nodes:
        if isinstance(node, IntegerConv) and len(readers[node.output]) == 1:
            (place,) = readers[node.output]
            free = place >= 0 and place not in taken and isinstance(nodes[place], ProgramOp)
            if free and step(program, node, nodes[place]):
                taken[place] = node
    moved = {id(node) for node in taken.values()}
    placed = (taken.get(place, node) for place, node in enumerate(nodes))
    return [node for place, node in enumerate(placed) if place in taken or id(node) not in moved]


def _readers(program: Program, nodes: list[Node]) -> dict[str, list[int]]:
    """The readers of each value, by place; -1 is the program's output."""
    readers = defaultdict(list)
    for place, node in enumerate(nodes):
        for name in node.reads:
            readers[name].append(place)
    readers[program.output].append(-1)
    return readers


def _norm(program: Program, conv: IntegerConv, op: ProgramOp) -> bool:
    if op.kind != "batch_norm" or op.attribute("data_layout") != "NCHW":
        return False
    if not op.attribute("is_test") or op.attribute("trainable_statistics"):  # the statistics of the batch
        return False
    roles = ("Scale", "Bias", "Mean", "Variance")
    gain, shift, mean, variance = (program.values[op.inputs[role][0]].astype(np.float64) for role in roles)
    gain = gain / np.sqrt(variance + op.attribute("epsilon"))
    conv.scale, conv.bias = conv.scale * gain, (conv.bias - mean) * gain + shift
    conv.output = op.outputs["Y"][0]
    return True


def _bias(program: Program, conv: IntegerConv, op: ProgramOp) -> bool:
    """A number per channel, added as [C] along axis 1 or as [1, C, 1, 1]."""
    if op.kind != "elementwise_add" or op.inputs["X"] != [conv.output]:
        return False
    value = program.values.get(op.inputs["Y"][0])
    channels = len(conv.bias)
    if value is None or value.size != channels or op.attribute("axis") not in (-1, 1):
        return False
    if value.shape == (channels,) and op.attribute("axis") != 1:
        return False
    if value.ndim > 1 and value.shape not in ((1, channels, 1, 1), (channels, 1, 1)):
        return False
    conv.bias = conv.bias + value.reshape(-1)
    conv.output = op.outputs["Out"][0]
    return True


def _shortcut(program: Program, conv: IntegerConv, op: ProgramOp) -> bool:
    if op.kind != "elementwise_add" or conv.residual is not None or conv.activation.name:
        return False
    others = [name for name in (*op.inputs["X"], *op.inputs["Y"]) if name != conv.output]
    if len(others) != 1 or others[0] in program.values:
        return False
    if program.variables[others[0]].shape != program.variables[conv.output].shape:
        return False
    conv.residual, conv.output = others[0], op.outputs["Out"][0]
    return True


def _activation(program: Program, conv: IntegerConv, op: ProgramOp) -> bool:
    known = {
        "relu": lambda: FusedActivation("relu"),
        "relu6": lambda: FusedActivation("relu6", 0.0, float(op.attribute("threshold"))),
        "hard_swish": lambda: _hard_swish(op),
    }
    activation = known[op.kind]() if op.kind in known else None
    if activation is None:
        return False
    conv.activation, conv.output = activation, op.outputs["Out"][0]
    return True


def _hard_swish(op: ProgramOp) -> FusedActivation | None:
    usual = (op.attribute("threshold"), op.attribute("scale"), op.attribute("offset")) == (6.0, 6.0, 3.0)
    return FusedActivation("hard_swish", 1 / 6, 0.5) if usual else None


def _put_on_next_grid(program: Program, nodes: list[Node]) -> None:
    """Let a convolution keep the bounds of the grid that comes next, and write integers where it can.

    It can where only convolutions read them, all on the same grid. With a shortcut added it writes floats,
    as the shortcut is.
    """
    readers = _readers(program, nodes)
    for conv in nodes:
        if not isinstance(conv, IntegerConv):
            continue
        following = [nodes[place] if place >= 0 else None for place in readers[conv.output]]
        if not all(isinstance(node, IntegerConv) and node.residual != conv.output for node in following):
            continue
        operands = [node.operand for node in following]
        if not all(same_operand(operand, operands[0]) for operand in operands):
            continue
        bounded = _bounded(conv.activation, operands[0])
        if bounded is not None:
            conv.activation = bounded
            conv.output_operand = operands[0] if conv.residual is None else None


def same_operand(a: DeployedOperand, b: DeployedOperand) -> bool:
    """Whether the same values become the same integers."""
    return (a.lowest, a.highest, float(a.scale)) == (b.lowest, b.highest, float(b.scale))


def _bounded(activation: FusedActivation, operand: DeployedOperand) -> FusedActivation | None:
    """The activation with the grid's bounds in it; None where one function cannot do both.

    oneDNN writes 0…255 after relu and relu6, else -128…127; the rest of the bounds must come from the
    function: relu6 and clip have two.
    """
    lowest, highest = (float(bound * operand.scale) for bound in (operand.lowest, operand.highest))
    if activation.name in ("relu", "relu6"):
        if operand.lowest > 0:
            return None
        top = min(highest, activation.beta) if activation.name == "relu6" else highest
        return FusedActivation("relu6", 0.0, top)
    if operand.highest > 127:
        return None
    if not activation.name:
        return FusedActivation("clip", lowest, highest)
    above_all = operand.lowest == -128 or lowest <= LOWEST_HARD_SWISH
    return activation if operand.highest == 127 and above_all else None


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
