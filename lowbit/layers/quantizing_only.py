"""Run a quantized model with some of its layers quantized and the others in full precision."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from paddle import Tensor, nn

from lowbit.errors import LowbitError, did_you_mean
from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.quantized import is_quantized
from lowbit.layers.weights_at_rest import layers_by_name


def quantized_layers(model: nn.Layer) -> dict[str, nn.Layer]:
    """The quantized layers of a model by name, in its order."""
    return {name: layer for name, layer in layers_by_name(model).items() if is_quantized(layer)}


@contextmanager
def quantizing_only(model: nn.Layer, names: Collection[str]) -> Iterator[None]:
    """Within it, and in evaluation mode, only the layers of these names quantize their operands.

    Nothing of the model's state is touched.

    with quantizing_only(model, {"conv1"}):
        logits = model(images)
    """
    layers = quantized_layers(model)
    for name in names:
        if name not in layers:
            raise LowbitError(f'no quantized layer "{name}": {did_you_mean(name, list(layers))}')
    with eval_mode(model), ExitStack() as undo:
        for name, layer in layers.items():
            if name not in names:
                for quantizer in ("input_quantizer", "weight_quantizer"):
                    # An attribute of the object hides the sublayer of that name, which stays where it is.
                    object.__setattr__(layer, quantizer, _unchanged)
                    undo.callback(object.__delattr__, layer, quantizer)
        yield


def _unchanged(x: Tensor) -> Tensor:
    return x
