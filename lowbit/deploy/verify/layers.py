"""Layer by layer: what an engine computed on the way, held to what the trained model computes.

Two questions per layer, about the integers that it takes. *Altogether*: are they the model's own for the same
images? Early differences go on into all later layers. *By itself*: are they what the model makes of the
integers that the engine had in the layers before? A difference here arose right there. Only integers
are read: reading an engine's floats would keep it from merging operators, and so change what is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import paddle
from paddle import nn

from lowbit.deploy.engines.engine import LayeredEngine
from lowbit.deploy.verify.onnx_graph import OnnxGraph
from lowbit.deploy.verify.steps import Steps
from lowbit.deploy.verify.taps import integers_read, layers_in_order
from lowbit.errors import LowbitError
from lowbit.layers import eval_mode

LOGITS = "logits"
# A layer departs by itself when its differences are worse than either. Other orders of adding floats move a
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
    def departs(self) -> bool:
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
    print(guilty_layers(rows))
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


def guilty_layers(rows: list[LayerDifference]) -> list[str]:
    """The layers that compute something else than the model, from what they were given: the first of them.

    Several where their outputs are added before anything can be read; none where no layer departs.
    """
    cleared: set[str] = set()
    for row in rows:
        if row.departs:
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
