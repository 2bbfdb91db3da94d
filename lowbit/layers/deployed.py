"""What a quantized layer is when it is deployed: integers, their scale and their bounds, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import paddle
from paddle import nn

from lowbit.errors import LowbitError
from lowbit.layers.quantizer import Quantizer
from lowbit.numerics import quantize_to_integers
from lowbit.numerics.exact import negate
from lowbit.numerics.fake_quant import usable_bound


@dataclass(frozen=True, kw_only=True)
class DeployedOperand:
    """An operand on its grid: `integers * scale`, the integers from `lowest` to `highest`.

    The bounds of an input can be inside those of its grid, where PACT clips: to clip and then round is to
    round and then clip to the rounded bounds.
    """

    lowest: int
    highest: int
    bits: int
    signed: bool
    scale: np.ndarray  # float32; one number, or what broadcasts against the operand


def deployed_weight(layer: nn.Layer) -> tuple[np.ndarray, DeployedOperand]:
    """The integers (int16, in the layer's own layout) of a quantized layer's weight, and what they mean.

    integers, operand = deployed_weight(model.conv1)
    weight = integers * operand.scale
    """
    quantizer = _quantizer(layer, "weight")
    with paddle.no_grad():
        weight, _ = layer.effective_weight_and_bias()
        integers, scale = quantizer.integers(weight)
    if not np.isfinite(scale.numpy()).all() or not np.isfinite(integers.numpy()).all():
        raise LowbitError(f'the weight of layer "{quantizer.layer_name}" has NaN or Inf in it')
    grid = quantizer.grid()
    operand = DeployedOperand(
        lowest=grid.lowest, highest=grid.highest, bits=grid.bits, signed=grid.signed, scale=scale.numpy()
    )
    return integers.numpy().astype(np.int16), operand


def deployed_input(layer: nn.Layer) -> DeployedOperand:
    """What becomes of a quantized layer's input; a LowbitError where that is only known in every call.

    bounds = deployed_input(model.conv1)
    """
    quantizer = _quantizer(layer, "input")
    quantizer.check_ready()
    scale, grid = quantizer.scale(), quantizer.grid()
    if scale is None:
        raise LowbitError(
            f'the scale of the input of layer "{quantizer.layer_name}" is chosen anew in every call '
            f"({quantizer.spec}), which int8 engines cannot do: use scaling moving_average, learned or fixed"
        )
    lowest, highest = grid.lowest, grid.highest
    if quantizer.alpha is not None:
        bound = usable_bound(quantizer.alpha.value)
        highest = min(highest, int(quantize_to_integers(bound, scale, grid).min()))
        if grid.signed:
            lowest = max(lowest, int(quantize_to_integers(negate(bound), scale, grid).max()))
    if scale.size != 1:
        raise LowbitError(
            f'the input of layer "{quantizer.layer_name}" has a scale per channel ({quantizer.spec}), over '
            "which the layer sums: to deploy it, use granularity per-tensor"
        )
    return DeployedOperand(
        lowest=lowest, highest=highest, bits=grid.bits, signed=grid.signed, scale=scale.numpy().reshape([])
    )


def _quantizer(layer: nn.Layer, role: Literal["input", "weight"]) -> Quantizer:
    quantizer = getattr(layer, f"{role}_quantizer")
    if not isinstance(quantizer, Quantizer):
        raise LowbitError(
            f"the {role} of a {type(layer).__name__} is quantized by a class of your own "
            f"({type(quantizer).__name__}), which lowbit cannot write as integers"
        )
    if not quantizer.gives_integers:
        raise LowbitError(
            f'the {role} of layer "{quantizer.layer_name}" is on the grid {quantizer.spec.grid.name}, '
            "which has no integers"
        )
    return quantizer
