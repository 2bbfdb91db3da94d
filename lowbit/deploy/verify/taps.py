"""The integers that go into a model's quantized layers: read them, or put others in their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.layers import Quantizer, eval_mode, is_quantized


def layers_in_order(model: nn.Layer, images: np.ndarray) -> dict[str, nn.Layer]:
    """The layers whose inputs are integers, in the order in which a forward pass calls them.

    One that is called several times is left out: its integers have no name of their own.
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
