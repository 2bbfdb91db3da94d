"""Watching low-precision training: what quantizing does to every operand, while it is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paddle import nn

from lowbit.layers.low_precision import BackwardQuantizers
from lowbit.numerics.health import Health

# layer -> operand, such as `grad_input.grad_output` -> what was seen of it
Sight = dict[str, dict[str, Health]]


@contextmanager
def watching(model: nn.Layer, *, wanted: bool = True) -> Iterator[Sight]:
    """Within it, every low-precision layer's operands are measured as they are made; the last call counts.

    with watching(model) as seen:
        loss_of(model, batch).backward()
    print(seen["layer1.0.conv1"]["grad_input.grad_output"].sqnr)
    """
    seen: Sight = {}
    parts = [
        (name, layer.backward_quantizers)
        for name, layer in model.named_sublayers(include_self=True)
        if wanted and isinstance(getattr(layer, "backward_quantizers", None), BackwardQuantizers)
    ]
    for name, part in parts:
        part.watched = seen.setdefault(name, {})
    try:
        yield seen
    finally:
        for _, part in parts:
            part.watched = None
