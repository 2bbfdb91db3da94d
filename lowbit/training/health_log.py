"""The health of a low-precision run: sampled while it trains, written once an epoch, sick layers named."""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from lowbit.layers.watch import Sight, watching
from lowbit.training.session import Session

_DROWNED = 0.0  # dB: the error is as large as the gradient itself


class HealthLog:
    """Means over the samples of an epoch, per layer and operand."""

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
        """`{layer: {operand: {sqnr: …}}}`, rounded to what is worth keeping; empty without a sample."""
        layers: dict[str, Any] = {}
        for (layer, operand), values in self._sums.items():
            means = {name: round(sum(seen) / len(seen), 5) for name, seen in values.items()}
            layers.setdefault(layer, {})[operand] = means
        return layers

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
