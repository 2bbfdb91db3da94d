"""Layer by layer: hooks that take activations, the steps they differ by, and the layers that are wrong."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import paddle
from onnx import numpy_helper
from paddle import Tensor, nn

from lowbit.deploy.engines.engine import LayeredEngine, find_onnx_file
from lowbit.errors import LowbitError
from lowbit.nn import Quantizer, eval_mode, is_quantized


@dataclass
class Steps:
    """Differences of values that should be equal.

    >>> steps = Steps()
    >>> steps.add(np.array([3, 4, 5, 6]), np.array([3, 4, 5, 8]))
    >>> steps.largest, steps.differing, round(steps.sqnr)
    (2.0, 0.25, 13)
    """

    count: int = 0
    unequal: int = 0
    beyond_one: int = 0
    largest: float = 0.0
    signal: float = 0.0  # sums of squares
    noise: float = 0.0

    def add(self, expected: np.ndarray, got: np.ndarray) -> None:
        """Count one batch; what is not a number on one side is infinitely far from everything."""
        wanted = expected.astype(np.float64)
        distance = np.abs(got.astype(np.float64) - wanted)
        distance = np.where(np.isnan(distance), np.inf, distance)
        self.count += distance.size
        self.unequal += int((distance > 0).sum())
        self.beyond_one += int((distance > 1).sum())
        self.largest = max(self.largest, float(distance.max(initial=0)))
        self.signal += float(np.square(np.where(np.isfinite(wanted), wanted, 0)).sum())
        self.noise += float(np.square(distance).sum())

    @property
    def differing(self) -> float:
        """The fraction that is not equal."""
        return self.unequal / self.count if self.count else 0.0

    @property
    def far(self) -> float:
        """The fraction that is more than one step away."""
        return self.beyond_one / self.count if self.count else 0.0

    @property
    def sqnr(self) -> float:
        """The signal over the differences, in decibels: infinite where all are equal."""
        if self.noise == 0:
            return math.inf
        if self.signal == 0 or math.isinf(self.noise):
            return -math.inf
        return 10 * math.log10(self.signal / self.noise)


# Reading or replacing the integer inputs of quantized layers.


def layers_in_order(model: nn.Layer, images: np.ndarray) -> dict[str, nn.Layer]:
    """The layers whose inputs are integers, in the order in which a forward pass calls them.

    One that is called several times is skipped: its integers have no name.
    """
    names = {
        id(layer): name
        for name, layer in model.named_sublayers(include_self=True)
        if is_quantized(layer)
        and isinstance(layer.input_quantizer, Quantizer)
        and layer.input_quantizer.gives_integers
    }
    layers = {name: layer for name, layer in model.named_sublayers(include_self=True) if id(layer) in names}
    calls: list[str] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, _: calls.append(names[id(layer)]))
        for layer in layers.values()
    ]
    try:
        with eval_mode(model):
            model(paddle.to_tensor(images))
    finally:
        for hook in hooks:
            hook.remove()
    times = Counter(calls)
    return {name: layers[name] for name in calls if times[name] == 1}


@contextmanager
def integers_read(
    layers: Mapping[str, nn.Layer], instead: Mapping[str, np.ndarray] | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Within it, a forward pass leaves the integers of each layer's input in the dictionary, by name.

    `instead` are integers that the layers shall compute with: what is read at a layer is then what the
    layers before make of *those* integers, whatever they themselves were given.

    with integers_read(layers) as seen, eval_mode(model):
        model(images)
    """
    seen: dict[str, np.ndarray] = {}

    def look(name: str, layer: nn.Layer, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        integers, scale = layer.input_quantizer.integers(given[0])
        seen[name] = integers.numpy().astype(np.int32)
        if instead is None:
            return None
        # An integer times its scale is quantized to the same integer again.
        return (_tensor(instead[name], given[0]) * scale, *given[1:])

    hooks = [
        layer.register_forward_pre_hook(lambda layer, given, name=name: look(name, layer, given))
        for name, layer in layers.items()
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _tensor(integers: np.ndarray, like: Tensor) -> Tensor:
    return paddle.to_tensor(integers.astype(np.float32)).astype(like.dtype)


# The layers' integers in an ONNX file that lowbit wrote.


class OnnxGraph:
    """The graph of an exported file, asked by the names of the model's layers.

    graph = OnnxGraph("runs/digits/export/inference.onnx")
    graph.inputs["layer1.0.conv2"]          # the tensor of integers that this layer takes
    graph.makers("layer1.0.conv2.input")    # ["layer1.0.conv1"]

    The file says itself, in its metadata, which tensors are its layers'.
    """

    def __init__(self, path: str | Path) -> None:
        model = onnx.load(str(find_onnx_file(path)))
        properties = {one.key: one.value for one in model.metadata_props}
        if "lowbit" not in properties:
            raise LowbitError(f"{path} does not say where its layers are: it was not exported by lowbit")
        described = json.loads(properties["lowbit"])
        calls = described["layers"]
        self.target: str | None = described["target"]
        self.checkpoint: str | None = described.get("checkpoint")  # the SHA-256 of what was exported
        # A layer that is called several times has an entry per call, "conv:1".
        self.inputs = {call: tensors["input"] for call, tensors in calls.items() if "input" in tensors}
        self._layer_of = {tensors["output"]: call.partition(":")[0] for call, tensors in calls.items()}
        self._made_by = {output: node for node in model.graph.node for output in node.output}
        dequantize = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
        self._read_by = {node.input[0]: node for node in dequantize}
        self._place = {output: place for place, node in enumerate(model.graph.node) for output in node.output}
        self._constants = {constant.name: constant for constant in model.graph.initializer}

    def zero_point(self, tensor: str) -> int:
        """The integer of this quantized tensor that stands for 0, as where it becomes values."""
        node = self._read_by[tensor]
        if len(node.input) < 3 or not node.input[2]:
            return 0
        return int(numpy_helper.to_array(self._constants[node.input[2]]).reshape(-1)[0])

    def makers(self, tensor: str) -> list[str]:
        """The layers that the tensor is computed by, without another layer in between, the last one first."""
        outputs, waiting, done = set(), [tensor], set()
        while waiting:
            name = waiting.pop()
            if name in done:
                continue
            done.add(name)
            if name in self._layer_of:
                outputs.add(name)
            elif name in self._made_by:
                waiting.extend(self._made_by[name].input)
        latest_first = sorted(outputs, key=self._place.__getitem__, reverse=True)
        return list(dict.fromkeys(self._layer_of[name] for name in latest_first))


# Comparing an engine with the model layer by layer.
#
# Two questions per layer, about its integer inputs. *Altogether*: are they those of the model on the same
# images? Early differences propagate to all later layers. *By itself*: are they what the model computes
# from the engine's integers of the layers before? A difference here arose in this layer. Only integers are
# read: reading floats would keep the engine from fusing operators and so change the result.


LOGITS = "logits"
# A layer is wrong by itself when its differences are worse than either. Other orders of adding floats move a
# value in thousands across a rounding boundary, by one step.
FAR = 0.01  # of the integers more than one step away
SQNR = 20.0  # decibels: differences of a tenth of the signal


@dataclass
class LayerDifference:
    """The integers of a layer's input (or the logits, at the end) in an engine against the model's."""

    name: str
    made_by: list[str]  # the layers that compute them; empty for what comes from the image alone
    by_itself: Steps = field(default_factory=Steps)
    altogether: Steps = field(default_factory=Steps)

    @property
    def is_wrong(self) -> bool:
        """Whether the engine computed something else here, from what it had."""
        far = self.name != LOGITS and self.by_itself.far > FAR  # logits have no steps
        return far or self.by_itself.sqnr < SQNR


def compare_layers(
    model: nn.Layer,
    engine: LayeredEngine,
    graph: OnnxGraph,
    batches: Iterable[np.ndarray],
    *,
    on_batch: Callable[[], None] = lambda: None,
) -> list[LayerDifference]:
    """The differences at each quantized layer, in the order of the forward pass, and at the logits.

    rows = compare_layers(model, OnnxRuntimeEngine(path), OnnxGraph(path), [images])
    print(first_wrong_layers(rows))
    """
    rows: dict[str, LayerDifference] = {}
    layers: dict[str, nn.Layer] = {}
    for images in batches:
        if not rows:
            called = layers_in_order(model, images)
            layers = {name: layer for name, layer in called.items() if name in graph.inputs}
            made_by = {name: graph.makers(graph.inputs[name]) for name in layers}
            made_by[LOGITS] = graph.makers(LOGITS)
            rows = {name: LayerDifference(name, makers) for name, makers in made_by.items()}
        answers, integers = _integers_of(engine, graph, images, list(layers))
        x = paddle.to_tensor(images)
        with eval_mode(model):
            with integers_read(layers) as own:
                logits = model(x).numpy()
            _check_shapes(own, integers, engine)
            with integers_read(layers, instead=integers) as remade:
                logits_remade = model(x).numpy()
        for name in layers:
            rows[name].altogether.add(own[name], integers[name])
            rows[name].by_itself.add(remade[name], integers[name])
        rows[LOGITS].altogether.add(logits, answers)
        rows[LOGITS].by_itself.add(logits_remade, answers)
        on_batch()
    return list(rows.values())


def first_wrong_layers(rows: list[LayerDifference]) -> list[str]:
    """The layers that compute something else than the model, from what they were given: the first of them.

    Several where their outputs are added before anything can be read; none where no layer is wrong.
    """
    cleared: set[str] = set()
    for row in rows:
        if row.is_wrong:
            return [name for name in row.made_by if name not in cleared] or row.made_by or ["the input"]
        cleared.update(row.made_by)
    return []


def _integers_of(
    engine: LayeredEngine, graph: OnnxGraph, images: np.ndarray, layers: list[str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The engine's logits, and the integers that each of the layers takes there."""
    tensors = {name: graph.inputs[name] for name in layers}
    answers = engine.run_with(images, list(dict.fromkeys(tensors.values())))
    integers = {
        name: answers[tensor].astype(np.int32) - graph.zero_point(tensor) for name, tensor in tensors.items()
    }
    return answers[LOGITS], integers


def _check_shapes(own: dict[str, np.ndarray], theirs: dict[str, np.ndarray], engine: LayeredEngine) -> None:
    for name, integers in own.items():
        if integers.shape != theirs[name].shape:
            raise LowbitError(
                f'the input of layer "{name}" is {list(theirs[name].shape)} in {engine.name} and '
                f"{list(integers.shape)} in the model: the file is of another model; export it again"
            )
