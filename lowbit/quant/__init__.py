"""The newer interface of PaddleSlim and Paddle: `QuantConfig`, `QAT` and `PTQ`, carried out by lowbit.

What chooses the scales is in `observers` (PTQ) and `quanters` (QAT).

from lowbit.quant import PTQ, QuantConfig
from lowbit.quant.observers import AbsMaxChannelWiseWeightObserver, HistObserver

ptq = PTQ(QuantConfig(activation=HistObserver(), weight=AbsMaxChannelWiseWeightObserver()))
net = ptq.quantize(net)
for images in loader:
    net(images)
net = ptq.convert(net)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from paddle import nn

from lowbit.errors import LowbitError, did_you_mean
from lowbit.nn import find_quantizers, has_quantized_layers, prepare
from lowbit.quant.observers import Factory, explain
from lowbit.recipe import Recipe
from lowbit.recipe.model_layers import QUANTIZABLE, find_layers

__all__ = ["PTQ", "QAT", "QuantConfig"]


class QuantConfig:
    """How activations and weights are quantized: everywhere, and in layers by type, name or object.

    None leaves an operand in full precision. What was said of a layer itself comes before what was said of
    its name, then of its type.

    >>> config = QuantConfig(activation=None, weight=None)
    >>> config.add_type_config(nn.Conv2D, weight=AbsmaxObserver())  # doctest: +SKIP
    """

    def __init__(self, activation: Factory | None, weight: Factory | None) -> None:
        self._usual = _operands(activation, weight)
        self._by_type: list[tuple[list[type], dict[str, Any]]] = []
        self._by_name: list[tuple[list[str], dict[str, Any]]] = []
        self._by_layer: list[tuple[list[nn.Layer], dict[str, Any]]] = []

    def add_type_config(
        self, layer_type: Any, activation: Factory | None = None, weight: Factory | None = None
    ) -> None:
        """For layers of a class, such as `nn.Linear`, or of several."""
        types = _listed(layer_type)
        for each in types:
            if each.__name__ not in QUANTIZABLE:
                hint = did_you_mean(each.__name__, QUANTIZABLE)
                raise LowbitError(f"layers of type {each.__name__} are not quantized, {hint}")
        self._by_type.append((types, _operands(activation, weight)))

    def add_name_config(
        self, layer_name: Any, activation: Factory | None = None, weight: Factory | None = None
    ) -> None:
        """For layers of a name in the network (`layer1.0.conv1`), or of Paddle's (`conv2d_3`)."""
        self._by_name.append((_listed(layer_name), _operands(activation, weight)))

    def add_layer_config(
        self, layer: Any, activation: Factory | None = None, weight: Factory | None = None
    ) -> None:
        """For a layer of the network, or a block of layers."""
        self._by_layer.append((_listed(layer), _operands(activation, weight)))

    def recipe(self, model: nn.Layer) -> Recipe:
        """The same as a recipe for this model."""
        rules: list[dict[str, Any]] = [{"forward": self._usual}]
        present = {layer.type for layer in find_layers(model)}
        for types, operands in self._by_type:
            if wanted := [each.__name__ for each in types if each.__name__ in present]:
                rules.append({"match": {"type": wanted}, "forward": operands})
        names = dict(model.named_sublayers())
        for wanted, operands in self._by_name:
            found = [_name_of(word, names) for word in wanted]
            rules.append({"match": {"name": found}, "forward": operands})
        for layers, operands in self._by_layer:
            found = [name for name, layer in names.items() if any(layer is one for one in layers)]
            if len(found) < len(layers):
                raise LowbitError("add_layer_config was given a layer that is not in this model")
            rules.append({"match": {"name": found}, "forward": operands})
        # Observers find their scales while the network is run; how often is the caller's to decide.
        operands_of = [operand for rule in rules for operand in rule["forward"].values()]
        observed = any(operand.get("scaling") == "fixed" for operand in operands_of)
        return Recipe.model_validate({"rules": rules, "calibration": {"steps": 1} if observed else {}})


def _operands(activation: Factory | None, weight: Factory | None) -> dict[str, Any]:
    return {
        name: {"grid": "full"} if factory is None else factory.settings(role)
        for name, role, factory in (("input", "activation", activation), ("weight", "weight", weight))
    }


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | nn.Layer) else [value]


def _name_of(word: str, layers: dict[str, nn.Layer]) -> str:
    if word in layers:
        return word
    for name, layer in layers.items():
        if layer.full_name() == word:
            return name
    raise LowbitError(f'add_name_config: no layer "{word}", {did_you_mean(word, layers)}')


class _Quantization:
    def __init__(self, config: QuantConfig) -> None:
        if not isinstance(config, QuantConfig):
            raise LowbitError(
                f"{type(self).__name__} takes a QuantConfig, got {type(config).__name__}; PaddleSlim's older "
                "QAT(config=dict) is lowbit.QAT"
            )
        self._config = config

    def quantize(self, model: nn.Layer, inplace: bool = False) -> nn.Layer:
        """The quantized model: a copy, or `model` itself with `inplace`."""
        recipe = self._config.recipe(model)
        return prepare(model if inplace else copy.deepcopy(model), recipe)

    def convert(self, model: nn.Layer, inplace: bool = False, remain_weight: bool = False) -> nn.Layer:
        """The model as it is deployed, in evaluation mode; `lowbit.export` writes it.

        `remain_weight` has nothing to say here: weights stay in fp32 until they are exported as integers.
        """
        if not has_quantized_layers(model):
            raise LowbitError(f"{type(model).__name__} is not quantized: call quantize(net) first")
        for quantizer in find_quantizers(model):
            quantizer.check_ready()
        model = model if inplace else copy.deepcopy(model)
        model.eval()
        return model


class QAT(_Quantization):
    """Quantization-aware training: `quantize`, train, `convert`."""


class PTQ(_Quantization):
    """Post-training quantization: `quantize`, run the network on some batches, `convert`."""

    def quantize(self, model: nn.Layer, inplace: bool = False) -> nn.Layer:
        """As `QAT.quantize`; until `convert` the network computes in fp32 and its quantizers look on."""
        prepared = super().quantize(model, inplace)
        prepared.eval()
        for quantizer in find_quantizers(prepared):
            quantizer.start_calibration()
        return prepared

    def convert(self, model: nn.Layer, inplace: bool = False, remain_weight: bool = False) -> nn.Layer:
        """The model with the scales of the batches that it has seen."""
        for quantizer in find_quantizers(model):
            quantizer.end_calibration()
        return super().convert(model, inplace, remain_weight)


def __getattr__(name: str) -> Any:
    return explain(__name__, name)
