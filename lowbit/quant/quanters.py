"""PaddleSlim's and Paddle's quanters, which quantization-aware training quantizes with.

from lowbit.quant.quanters import ActLSQplusQuanter  # instead of: from paddleslim.quant.quanters import …
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lowbit.quant.observers import Factory, _only_weights, explain


@dataclass(frozen=True)
class FakeQuanterWithAbsMaxObserver(Factory):
    """A moving average of the largest magnitude."""

    moving_rate: float = 0.9

    def settings(self, role: str) -> dict[str, Any]:
        return self._spec(scaling=f"moving_average({self.moving_rate!r})")


@dataclass(frozen=True)
class FakeQuanterChannelWiseAbsMaxObserver(Factory):
    """The largest magnitude of each output channel of a weight."""

    def settings(self, role: str) -> dict[str, Any]:
        _only_weights(self, role)
        return self._spec(granularity="N", scaling="dynamic")


@dataclass(frozen=True)
class ActLSQplusQuanter(Factory):
    """A learned step (LSQ); with `symmetric=False` a learned offset, too, an integer zero point (LSQ+)."""

    all_postive: bool = False  # PaddleSlim's spelling
    symmetric: bool = True

    def settings(self, role: str) -> dict[str, Any]:
        if self.all_postive:
            return self._spec(grid=f"uint{self.quant_bits}", scaling="learned")
        sign = {} if self.symmetric else {"sign": "asymmetric"}
        return self._spec(grid=f"int{self.quant_bits}", scaling="learned", **sign)


@dataclass(frozen=True)
class WeightLSQplusQuanter(Factory):
    """A learned step, of each output channel with `per_channel`."""

    per_channel: bool = False

    def settings(self, role: str) -> dict[str, Any]:
        _only_weights(self, role)
        granularity = "N" if self.per_channel else "per-tensor"
        return self._spec(grid=f"int{self.quant_bits}", granularity=granularity, scaling="learned")


@dataclass(frozen=True)
class PACTQuanter(Factory):
    """Clips at a learned bound, then quantizes with another quanter."""

    quanter: Factory = field(default_factory=FakeQuanterWithAbsMaxObserver)

    def settings(self, role: str) -> dict[str, Any]:
        return self.quanter.settings(role) | {"clip": "pact"}


def __getattr__(name: str) -> Any:
    return explain(__name__, name)
