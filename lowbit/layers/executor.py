"""Who multiplies in training: real integers in C++, or their simulation in floats; and why."""

from __future__ import annotations

from paddle import nn

from lowbit.errors import LowbitError
from lowbit.kernels import why_missing
from lowbit.layers.low_precision import BackwardQuantizers
from lowbit.layers.prepare import preparation_of
from lowbit.layers.products import Executor
from lowbit.layers.quantized import is_quantized


def set_executor(
    model: nn.Layer, executor: Executor, *, device: str = "cpu", qat_in_floats: bool = False
) -> list[str]:
    """Lets the quantized layers of a prepared model multiply so; returns lines that the user must see.

    `auto` takes integers where the scales allow it, `integer` is an error where they do not. In quantization-
    aware training it is about forward alone. `qat_in_floats` is for mixed precision, on whose grid the
    products of quantization-aware training are computed.

    set_executor(model, "integer")
    """
    layers = [layer for layer in model.sublayers(include_self=True) if is_quantized(layer)]
    if not layers:
        return []
    parts = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, BackwardQuantizers)]
    simulated = {} if executor == "simulate" else _simulated(model, qat_in_floats=qat_in_floats)
    missing = why_missing() if device == "cpu" else f"the C++ kernels are for the CPU, not for {device}"
    if executor == "integer" and (missing or simulated):
        reasons = [missing] if missing else _lines(simulated)
        raise LowbitError("executor integer cannot be had: " + "\n  ".join(reasons))
    chosen: Executor = "simulate" if missing else executor
    for layer in layers:
        layer.executor = "simulate" if qat_in_floats else chosen
    for part in parts:
        part.executor = chosen
    what = "products" if parts else "forward products"
    if executor == "simulate":
        return [f"{what} of integers are simulated in floats, as asked for"]
    if missing:
        return [f"{what} of integers are simulated in floats: {missing}"]
    if simulated:
        lines = [f"{what} in integers in C++, but for these, simulated in floats:", *_lines(simulated)]
        return ["\n  ".join(lines)]
    return [f"{what} in integers in C++"]


def _simulated(model: nn.Layer, *, qat_in_floats: bool) -> dict[str, list[str]]:
    """`product: reason` -> the layers whose product cannot run in integers though it is quantized."""
    found: dict[str, list[str]] = {}
    layers = dict(model.named_sublayers(include_self=True))
    for assigned in preparation_of(model).layers:
        name, layer = assigned.layer.name, layers[assigned.layer.name]
        if not is_quantized(layer):
            continue
        reasons = assigned.plan.runs_in_integers(assigned.layer.type)
        if assigned.plan.is_straight_through and qat_in_floats:
            reasons["forward"] = "mixed precision computes it on its own grid"
        elif hasattr(layer, "fold"):
            reasons["forward"] = "the weight is quantized with its batch norm folded into it"
        for product, why in reasons.items():
            if why and "straight-through" not in why:
                found.setdefault(f"{product}: {why}", []).append(name)
    return found


def _lines(simulated: dict[str, list[str]]) -> list[str]:
    return [
        f"{reason} ({', '.join(layers) if len(layers) < 4 else f'{layers[0]} and {len(layers) - 1} more'})"
        for reason, layers in simulated.items()
    ]
