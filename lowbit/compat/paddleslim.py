"""PaddleSlim's QAT: its constructor, `quantize` and `save_quantized_model`, carried out by lowbit's layers.

from lowbit import QAT                     # instead of: from paddleslim import QAT

quanter = QAT(config={"activation_preprocess_type": "PACT"})
quanter.quantize(net)
...                                        # train as usual
quanter.save_quantized_model(net, "./quant_inference_model", input_spec=[InputSpec([None, 3, 224, 224])])
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.static import InputSpec

from lowbit.config.yaml_file import check_section
from lowbit.deploy.save_program import save_program
from lowbit.errors import LowbitError
from lowbit.nn import (
    eval_mode,
    find_quantizers,
    fold_batch_norm,
    has_quantized_layers,
    preparation_of,
    prepare,
)
from lowbit.recipe import PACT, find_layers, parse_quant_config
from lowbit.recipe.recipe import BatchNorm, Pact

__all__ = ["PACT", "QAT"]

Custom = Callable[[], Callable[[Tensor], Tensor]]  # a class: called without arguments for every layer


class QAT:
    """Quantization-aware training with PaddleSlim's `quant_config`; every key is in docs/from_paddleslim.md.

    `weight_preprocess` and `act_preprocess` are classes; one instance per layer is called on the operand
    before it is quantized. Instances of `weight_quantize` and `act_quantize` replace the quantizer. `pact`,
    an addition of lowbit, sets how PACT's bounds are trained; by default they are initialized from data.
    PaddleSlim's settings are `{"initial": 100, "learning_rate": 1000, "weight_decay": 0}`.

    >>> net = QAT(config={"weight_bits": 4}).quantize(nn.Sequential(nn.Linear(4, 2)))
    >>> type(net[0]).__name__
    'QuantizedLinear'
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        weight_preprocess: Custom | None = None,
        act_preprocess: Custom | None = None,
        weight_quantize: Custom | None = None,
        act_quantize: Custom | None = None,
        *,
        pact: Mapping[str, Any] | None = None,
    ) -> None:
        config = dict(config or {})
        self._weight_preprocess = _preprocess(config, "weight_preprocess_type", weight_preprocess)
        self._act_preprocess = _preprocess(config, "activation_preprocess_type", act_preprocess)
        self._weight_quantize = _checked("weight_quantize", weight_quantize)
        self._act_quantize = _checked("act_quantize", act_quantize)
        self.config = parse_quant_config(config)
        self._pact = check_section(Pact, dict(pact or {}), {}, "pact")
        clipped = (self.config.weight_preprocess_type, self.config.activation_preprocess_type)
        if pact is not None and "PACT" not in clipped:
            raise LowbitError(
                "pact has no effect without PACT: add 'activation_preprocess_type': 'PACT' to the config"
            )

    def quantize(self, model: nn.Layer, inplace: bool = True) -> nn.Layer:
        """The quantized model: `model` itself, or a copy with `inplace=False`. Make the optimizer after."""
        model = model if inplace else copy.deepcopy(model)
        recipe = self.config.recipe().model_copy(update={"pact": self._pact})
        if self.config.fuse_conv_bn:
            recipe.assign(model)  # what is wrong with the model or the layer types, before it is changed
            self._fold(model)
            recipe = recipe.model_copy(update={"batch_norm": BatchNorm()})
        prepare(model, recipe)
        layers = dict(model.named_sublayers(remove_duplicate=False))
        for name in preparation_of(model).quantized:
            layer = layers[name]
            layer.input_quantizer = _customized(
                layer.input_quantizer, self._act_preprocess, self._act_quantize
            )
            layer.weight_quantizer = _customized(
                layer.weight_quantizer, self._weight_preprocess, self._weight_quantize
            )
        return model

    def save_quantized_model(
        self, model: nn.Layer, path: str, input_spec: Sequence[InputSpec | Tensor] | None = None
    ) -> None:
        """Write `path`.json and `path`.pdiparams: a program that answers as the model does in evaluation.

        It is compared with the model before it is put in place. The model stays as it is, also in the middle
        of training, and the process in dynamic mode.
        """
        model = model._layers if isinstance(model, paddle.DataParallel) else model
        if not has_quantized_layers(model):
            raise LowbitError(
                f"{type(model).__name__} is not quantized: call quantize(net) and train before saving"
            )
        for quantizer in find_quantizers(model):
            quantizer.check_ready()
        save_program(model, path, input_spec)

    def _fold(self, model: nn.Layer) -> None:
        if has_quantized_layers(model):
            return  # prepare says so
        folded = fold_batch_norm(model, *example_inputs(model))
        if folded.left_alone:
            reasons = "; ".join(f"{name}: {why}" for name, why in folded.left_alone.items())
            warnings.warn(f"fuse_conv_bn left batch norms as they are: {reasons}", stacklevel=3)


class _Called(nn.Layer):
    """A user's own callable as a layer, so that it can stand in a layer's place."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _preprocess(config: dict[str, Any], key: str, given: Custom | None) -> Custom | None:
    """The user's own class, from the argument or the config; lowbit's PACT becomes its word in the config."""
    own: Any = config.get(key) if isinstance(config.get(key), type) else None
    if given is not None and config.get(key) is not None:
        raise LowbitError(f"{key} is given in the config and as an argument of QAT as well: leave one out")
    chosen: Any = given if given is not None else own
    if chosen is None:
        return None
    if isinstance(chosen, type) and (issubclass(chosen, PACT) or chosen.__module__.startswith("paddleslim.")):
        config[key] = chosen
        return None
    config.pop(key, None)
    return _checked(key, chosen)


def _checked(name: str, custom: Custom | None) -> Custom | None:
    if custom is not None and (not callable(custom) or isinstance(custom, nn.Layer)):
        raise LowbitError(
            f"{name} must be a class (or function) that makes a new object for every layer when called "
            f"without arguments, not {custom!r}"
        )
    return custom


def _customized(quantizer: nn.Layer, preprocess: Custom | None, quantize: Custom | None) -> nn.Layer:
    chosen = quantizer if quantize is None else _as_layer(quantize())
    if preprocess is None:
        return chosen
    return nn.Sequential(("preprocess", _as_layer(preprocess())), ("quantizer", chosen))


def _as_layer(made: Callable[[Tensor], Tensor]) -> nn.Layer:
    return made if isinstance(made, nn.Layer) else _Called(made)


_SIDES = (32, 224)


def example_inputs(model: nn.Layer) -> list[Tensor]:
    """A batch of two of random numbers that the model takes, or a LowbitError.

    >>> list(example_inputs(nn.Sequential(nn.Linear(4, 2)))[0].shape)
    [2, 4]
    """
    first = dict(model.named_sublayers())[find_layers(model)[0].name]
    shapes = _shapes(first)
    for shape in shapes:
        numbers = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        inputs = [paddle.to_tensor(numbers)]
        try:
            with eval_mode(model):
                model(*inputs)
        except Exception:  # the user's own forward may raise anything; the next shape is tried
            continue
        return inputs
    raise LowbitError(
        f"fuse_conv_bn needs to run {type(model).__name__} once, but it runs on none of the inputs "
        f"{', '.join(map(str, shapes))}: leave fuse_conv_bn out and call "
        "lowbit.nn.fold_batch_norm(net, *inputs) with your own inputs before quantize"
    )


def _shapes(first: nn.Layer) -> list[list[int]]:
    if isinstance(first, nn.Linear):
        return [[2, first.weight.shape[0]]]
    sizes = [{"N": 2, "C": first._in_channels, "H": side, "W": side} for side in _SIDES]
    return [[size[letter] for letter in first._data_format] for size in sizes]
