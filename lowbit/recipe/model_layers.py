"""The layers of a model that a recipe is about, each with its names, its number and its weight's shape."""

from __future__ import annotations

from dataclasses import dataclass

import paddle
from paddle import nn

from lowbit.errors import LowbitError

QUANTIZABLE: dict[str, type[nn.Layer]] = {
    "Conv2D": nn.Conv2D,
    "Conv2DTranspose": nn.Conv2DTranspose,
    "Linear": nn.Linear,
}


@dataclass(frozen=True, kw_only=True)
class ModelLayer:
    """A convolution or Linear layer of a model.

    `names` has more than one entry where two parents share the layer. `left_alone` is the reason why no rule
    quantizes it, or nothing.
    """

    index: int
    names: tuple[str, ...]
    type: str
    shape: tuple[int, ...]
    left_alone: str = ""

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


def find_layers(model: nn.Layer) -> list[ModelLayer]:
    """The layers that can be quantized, in the order in which the model holds them.

    >>> [layer.name for layer in find_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))]
    ['0', '2']
    """
    if isinstance(model, paddle.DataParallel):
        model = model._layers  # the names that the user knows
    names: dict[int, list[str]] = {}
    layers: dict[int, nn.Layer] = {}
    for name, layer in model.named_sublayers(remove_duplicate=False):
        if isinstance(layer, tuple(QUANTIZABLE.values())):
            names.setdefault(id(layer), []).append(name)
            layers[id(layer)] = layer
    if not layers:
        hint = " (it is one itself: put it into an nn.Sequential)" if _type_of(model) else ""
        raise LowbitError(
            f"{type(model).__name__} has nothing to quantize: no {', '.join(QUANTIZABLE)} inside{hint}"
        )
    return [
        ModelLayer(
            index=index,
            names=tuple(names[key]),
            type=_type_of(layer),
            shape=tuple(layer.weight.shape),
            left_alone=_left_alone(layer),
        )
        for index, (key, layer) in enumerate(layers.items())
    ]


def _type_of(layer: nn.Layer) -> str:
    return next((word for word, kind in QUANTIZABLE.items() if isinstance(layer, kind)), "")


def _left_alone(layer: nn.Layer) -> str:
    if getattr(layer, "skip_quant", False):
        return "skip_quant"
    if type(layer).forward is not QUANTIZABLE[_type_of(layer)].forward:
        return f"{type(layer).__name__} has its own forward"
    return ""
