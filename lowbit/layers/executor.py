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

    `auto` takes integers where the scales allow it; `integer` is an error where those of low-precision
    training do not. In quantization-aware training it is about forward alone. `qat_in_floats` is for mixed
    precision, whose grid its products are computed on.

    set_executor(model, "integer")
    """
    layers = [layer for layer in model.sublayers(include_self=True) if is_quantized(layer)]
    if not layers:
        return []
    parts = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, BackwardQuantizers)]
    simulated = {} if executor == "simulate" else _simulated(model)
    missing = why_missing() if device == "cpu" else f"the C++ kernels are for the CPU, not for {device}"
    if executor == "integer" and (missing or simulated):
        reasons = [missing] if missing else _lines(simulated)
        raise LowbitError("executor integer cannot be had: " + "\n  ".join(reasons))
    chosen: Executor = "simulate" if missing else executor
    for layer in layers:
        layer.executor = "simulate" if qat_in_floats else chosen
    for part in parts:
        part.executor = chosen
    if not parts:
        return ["forward products in integers in C++"] if layers[0].executor != "simulate" else []
    if executor == "simulate":
        return ["products of integers are simulated in floats, as asked for"]
    if missing:
        return [f"products of integers are simulated in floats: {missing}"]
    if simulated:
        lines = ["products in integers in C++, but for these, simulated in floats:", *_lines(simulated)]
        return ["\n  ".join(lines)]
    return ["products in integers in C++"]


def _simulated(model: nn.Layer) -> dict[str, list[str]]:
    """`product: reason` -> the layers whose product cannot run in integers though it is quantized."""
    found: dict[str, list[str]] = {}
    for assigned in preparation_of(model).layers:
        if assigned.plan.is_straight_through:
            continue
        for product, why in assigned.plan.runs_in_integers(assigned.layer.type).items():
            if why and "straight-through" not in why:
                found.setdefault(f"{product}: {why}", []).append(assigned.layer.name)
    return found


def _lines(simulated: dict[str, list[str]]) -> list[str]:
    return [
        f"{reason} ({', '.join(layers) if len(layers) < 4 else f'{layers[0]} and {len(layers) - 1} more'})"
        for reason, layers in simulated.items()
    ]
