"""A quantized model as it is served: what does not depend on the images is computed once, before export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import paddle
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.layers.deployed import deployed_input
from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.integer_form import FROZEN, Frozen, per_output, runs_in_integers
from lowbit.numerics.exact import as_float32, multiply


@contextmanager
def frozen(model: nn.Layer) -> Iterator[None]:
    """Within it, and in evaluation, quantized layers use their integers and scales as constants.

    A program that is exported meanwhile carries the weights' integers instead of the weights and the
    operators that quantize them. The answers are the same, to the last bit. A layer whose scales are chosen
    anew in every call, or that does not compute in integers, stays as it is.

    with frozen(model):
        paddle.jit.save(model, "inference", input_spec=[spec])
    """
    done: list[nn.Layer] = []
    with eval_mode(model):
        try:
            for layer in model.sublayers(include_self=True):
                if hasattr(layer, "weight_quantizer") and runs_in_integers(layer) and _freeze(layer):
                    done.append(layer)
            yield
        finally:
            for layer in done:
                delattr(layer, FROZEN)


def _freeze(layer: nn.Layer) -> bool:
    try:
        bounds = deployed_input(layer)
    except LowbitError:  # its message is for those who want integers in a file
        return False
    weight, bias = layer.effective_weight_and_bias()
    integers, w_scale = layer.weight_quantizer.integers(weight)
    x_scale = paddle.to_tensor(bounds.scale.reshape([1]))
    constants = Frozen(
        bounds=(float(bounds.lowest), float(bounds.highest)),
        # A quarter of the file; a grid's integers fit, but for those of uint8.
        integers=integers.cast("int8" if layer.weight_quantizer.grid().highest < 128 else "uint8"),
        input_scale=x_scale,
        output_scale=multiply(x_scale, per_output(layer, w_scale)),
        bias=None if bias is None else as_float32(bias).clone(),
    )
    setattr(layer, FROZEN, constants)
    return True
