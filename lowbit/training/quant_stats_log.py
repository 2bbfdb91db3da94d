"""The health of a quantized run, written once an epoch, sick layers named.

In low-precision training operands are sampled while it trains; of any quantized layer the weight and the
scales are looked at as the epoch leaves them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from paddle import nn

from lowbit.nn.inspect import Sight, kept_scales, layers_by_name, watching, weight_health
from lowbit.training.session import Session

_WEIGHT = "forward.weight"
_DROWNED = 0.0  # dB: the error is as large as the gradient itself


class HealthLog:
    """Means over the samples of an epoch, per layer and operand, and what the weights are after it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._interval = session.config.Global.health_interval
        self._sums: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def watching(self) -> AbstractContextManager[Sight]:
        """To be open around a step: it looks at one in `Global.health_interval`, and the first."""
        wanted = bool(self._interval) and self._session.progress.batch % self._interval == 0
        return watching(self._session.model, wanted=wanted)

    def add(self, seen: Sight) -> None:
        """Takes in what was seen in a step."""
        for layer, operands in seen.items():
            for operand, health in operands.items():
                for name, value in asdict(health).items():
                    # An operand that nothing was changed of has an infinite SQNR, of which there is no mean.
                    if value is not None and math.isfinite(value):
                        self._sums[layer, operand][name].append(value)

    def record(self) -> dict[str, Any]:
        """`{layer: {operand: {sqnr: …, scale: …}}}`, rounded to what is worth keeping; empty where there is
        nothing quantized, or nobody wants to know."""
        layers: dict[str, Any] = {}
        for (layer, operand), values in self._sums.items():
            means = {name: round(sum(seen) / len(seen), 5) for name, seen in values.items()}
            layers.setdefault(layer, {})[operand] = means
        if self._interval and self._session.recipe is not None:
            for name, layer in layers_by_name(self._session.model).items():
                self._add_at_rest(layers, name, layer)
        return layers

    def _add_at_rest(self, layers: dict[str, Any], name: str, layer: nn.Layer) -> None:
        if (name, _WEIGHT) not in self._sums and (health := weight_health(layer)) is not None:
            found = {key: value for key, value in asdict(health).items() if value is not None}
            rounded = {key: round(value, 5) for key, value in found.items() if math.isfinite(value)}
            layers.setdefault(name, {})[_WEIGHT] = rounded
        for operand, scale in kept_scales(layer).items():
            if math.isfinite(scale):
                layers.setdefault(name, {}).setdefault(operand, {})["scale"] = float(f"{scale:.5g}")

    def warnings(self) -> list[str]:
        """A line for every layer whose gradient is drowned by its own quantization."""
        found = []
        for (layer, operand), values in self._sums.items():
            sqnr = values.get("sqnr", ())
            if operand.endswith("grad_output") and sqnr and (mean := sum(sqnr) / len(sqnr)) <= _DROWNED:
                lost = sum(values["underflowed"]) / len(values["underflowed"])
                found.append(
                    f'layer "{layer}": quantizing the gradient of {operand.split(".")[0]} adds an error as '
                    f"large as the gradient (SQNR {mean:.1f} dB, {lost:.0%} of it became 0): "
                    "a finer granularity, more bits or grid log4 for this layer may help"
                )
        return found
