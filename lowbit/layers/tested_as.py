"""Test a quantized model with all of its quantizers, with those of the weights alone, or with none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal, get_args

from paddle import Tensor, nn

from lowbit.errors import LowbitError, did_you_mean
from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.quantized import is_quantized

Way = Literal["quantized", "weights", "full"]

_LEFT_OUT: dict[str, tuple[str, ...]] = {
    "quantized": (),
    "weights": ("input_quantizer",),
    "full": ("input_quantizer", "weight_quantizer"),
}


@contextmanager
def tested_as(model: nn.Layer, how: Way) -> Iterator[None]:
    """Within it, in evaluation mode, the model computes as `how` says; afterwards as before.

    "quantized" is as it was trained, "weights" leaves inputs as they are, "full" leaves weights, too.
    Nothing of the model's state is touched: parameters, ranges, steps and signs are what they were.

    with tested_as(model, "weights"):
        logits = model(images)
    """
    if how not in _LEFT_OUT:
        raise LowbitError(f'a model is not tested as "{how}"; {did_you_mean(how, get_args(Way))}')
    with eval_mode(model), ExitStack() as undo:
        for layer in filter(is_quantized, model.sublayers(include_self=True)):
            for name in _LEFT_OUT[how]:
                # An attribute of the object hides the sublayer of that name, which stays where it is.
                object.__setattr__(layer, name, _unchanged)
                undo.callback(object.__delattr__, layer, name)
        yield


def _unchanged(x: Tensor) -> Tensor:
    return x
