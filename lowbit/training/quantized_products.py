"""Quantized layers with mixed precision: in QAT, the product alone is computed on the narrow grid.

Quantizers, and a batch norm folded into the weight, compute in fp32: a scale that was rounded to 8 or 11
bits would put every value of a tensor elsewhere. The fake-quantized operands are rounded when they are
multiplied. An integer of up to 8 bits would survive that in bf16 and in fp16; times its scale it is rounded,
by at most 2^-9 (bf16) or 2^-12 (fp16) of itself. Evaluation is in fp32, without this difference.

A layer trained in low precision computes as without mixed precision: its recipe says which numbers are
multiplied in all three products. Mixed precision is then for the layers that are left in full.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from paddle import Tensor, nn

from lowbit.layers import is_quantized
from lowbit.training.amp_context import AmpContext


def spare_quantizers(model: nn.Layer, amp: AmpContext) -> bool:
    """Let the quantized layers of a model, in place, compute so; returns whether there are any."""
    layers = [layer for layer in model.sublayers(include_self=True) if is_quantized(layer)]
    for layer in layers:
        layer.amp = amp
        layer.executor = "simulate"  # on the narrow grid there are no integers
        layer.__class__ = _sparing_class(type(layer))
    return bool(layers)


class _Sparing:
    """Mixed into a quantized layer, whose class is `_in_fp32`."""

    _in_fp32: type[nn.Layer]
    amp: AmpContext

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        with self.amp.outside():
            return self._in_fp32.forward(self, *arguments, **named)

    def product(self, *arguments: Any, **named: Any) -> Tensor:
        if not self.training or not self.plan.is_straight_through:
            return self._in_fp32.product(self, *arguments, **named)
        with self.amp.product():
            return self._in_fp32.product(self, *arguments, **named)


@cache
def _sparing_class(kind: type[nn.Layer]) -> type[nn.Layer]:
    return type(kind.__name__, (_Sparing, kind), {"_in_fp32": kind, "__module__": kind.__module__})
