"""Watching low-precision training: what quantizing does to every operand, while it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from paddle import Tensor, nn

from lowbit.layers.low_precision import BackwardQuantizers
from lowbit.layers.operand import Operand
from lowbit.numerics.stats import QuantStats, measure_stats

_ENOUGH = 1 << 16  # values to measure the health of an operand by

Seen = TypeVar("Seen")
# layer -> operand, such as `grad_input.grad_output` -> what was seen of it
Sight = dict[str, dict[str, QuantStats]]


def operand_health(x: Tensor, made: Operand) -> QuantStats:
    """The health of an operand that was made of `x`."""
    return measure_stats(x, made.data, made.scale, lowest=made.lowest, highest=made.highest, most=_ENOUGH)


@contextmanager
def watching(
    model: nn.Layer, look: Callable[[Tensor, Operand], Seen] = operand_health, *, wanted: bool = True
) -> Iterator[dict[str, dict[str, Seen]]]:
    """Within it, every low-precision layer's operands are looked at as they are made; the last call counts.

    with watching(model) as seen:
        loss_of(model, batch).backward()
    print(seen["layer1.0.conv1"]["grad_input.grad_output"].sqnr)
    """
    seen: dict[str, dict[str, Seen]] = {}
    parts = [
        (name, layer.backward_quantizers)
        for name, layer in model.named_sublayers(include_self=True)
        if wanted and isinstance(getattr(layer, "backward_quantizers", None), BackwardQuantizers)
    ]
    for name, part in parts:
        part.look = _into(seen.setdefault(name, {}), look)
    try:
        yield seen
    finally:
        for _, part in parts:
            part.look = None


def _into(
    found: dict[str, Seen], look: Callable[[Tensor, Operand], Seen]
) -> Callable[[str, Tensor, Operand], None]:
    def keep(operand: str, x: Tensor, made: Operand) -> None:
        found[operand] = look(x, made)

    return keep
