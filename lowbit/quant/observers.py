"""PaddleSlim's observers, which post-training quantization chooses scales with, as settings of a recipe.

from lowbit.quant.observers import HistObserver      # instead of: from paddleslim.quant.observers import …
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowbit.errors import LowbitError

_NARROW = "int{}-narrow"  # 2^(b-1) - 1 on both sides, as in PaddleSlim


@dataclass(frozen=True)
class Factory:
    """One operand's quantization; a `QuantConfig` makes a rule of it for each layer.

    >>> HistObserver(percent=0.99).settings("activation")["observer"]
    'percentile(99)'
    """

    quant_bits: int = 8

    def settings(self, role: str) -> dict[str, Any]:
        """The settings of an operand in a recipe; `role` is `activation` or `weight`."""
        raise NotImplementedError

    def _spec(self, **words: str) -> dict[str, Any]:
        usual = {"sign": "fixed", "granularity": "per-tensor", "observer": "minmax", "clip": "none"}
        return usual | {"grid": _NARROW.format(self.quant_bits)} | words


@dataclass(frozen=True)
class _ActivationObserver(Factory):
    def settings(self, role: str) -> dict[str, Any]:
        if role == "weight":  # known as a whole: nothing is collected over batches
            return self._spec(observer=self._word(), scaling="dynamic")
        return self._spec(observer=self._word(), scaling="fixed")

    def _word(self) -> str:
        return "minmax"


@dataclass(frozen=True)
class AVGObserver(_ActivationObserver):
    """The mean over batches of the largest magnitude."""


@dataclass(frozen=True)
class AbsmaxObserver(AVGObserver):
    """The same: lowbit's scales are means over batches, where PaddleSlim takes the largest of all."""


@dataclass(frozen=True)
class HistObserver(_ActivationObserver):
    """The magnitude that `percent` of the values stay below."""

    percent: float = 0.999

    def _word(self) -> str:
        return f"percentile({100 * self.percent:.10g})"


@dataclass(frozen=True)
class KLObserver(_ActivationObserver):
    """The scale whose quantized values are distributed most like the values (smallest divergence)."""

    def _word(self) -> str:
        return "kl"


@dataclass(frozen=True)
class MSEObserver(_ActivationObserver):
    """The scale of the smallest mean square error."""

    def _word(self) -> str:
        return "mse(50)"


@dataclass(frozen=True)
class AbsMaxChannelWiseWeightObserver(Factory):
    """The largest magnitude of each output channel of a weight."""

    def settings(self, role: str) -> dict[str, Any]:
        _only_weights(self, role)
        return self._spec(granularity="N", scaling="dynamic")


@dataclass(frozen=True)
class MSEChannelWiseWeightObserver(Factory):
    """The smallest mean square error of each output channel of a weight."""

    def settings(self, role: str) -> dict[str, Any]:
        _only_weights(self, role)
        return self._spec(granularity="N", scaling="dynamic", observer="mse(50)")


def _only_weights(factory: Factory, role: str) -> None:
    if role != "weight":
        raise LowbitError(f"{type(factory).__name__} is for weights: give an observer of activations")


def __getattr__(name: str) -> Any:
    return explain(__name__, name)


_PTQ = "lowbit.quantize(net, 'ptq_w8a8', data=loader)"
_INSTEAD = {
    "quant_aware": "lowbit.quantize(net, recipe), which works on networks in dynamic mode",
    "convert": "lowbit.export(net, 'out/', example=x)",
    "quant_post": _PTQ,
    "quant_post_static": _PTQ,
    "quant_post_dynamic": _PTQ,
    "quant_post_only_weight": _PTQ,
    "quant_post_hpo": _PTQ,
    "quant_recon_static": "lowbit.quantize with a recipe that learns rounding (`lowbit recipes`)",
    "quant_embedding": "nothing: lowbit quantizes convolutions and Linear layers",
    "AnalysisPTQ": "lowbit.analyze(net, loader)",
    "AnalysisQAT": "lowbit.analyze(net, loader)",
    "EMDObserver": "MSEObserver or KLObserver",
    "UniformObserver": "AbsmaxObserver",
    "GroupWiseWeightObserver": "AbsMaxChannelWiseWeightObserver",
    "ReconstructPTQ": _PTQ,
    "ReconstructActObserver": "MSEObserver",
    "ReconstructWeightObserver": "MSEChannelWiseWeightObserver",
    "SlimQuantConfig": "lowbit.quant.QuantConfig",
    "GPTQ": _PTQ,
    "Smooth": "lowbit.quantize with a recipe",
    "Shift": "lowbit.quantize with a recipe",
    "AutoClip": "MSEObserver",
    "PieceWiseSearch": "lowbit.analyze(net, loader)",
    "AWQSearch": "lowbit.analyze(net, loader)",
}


def explain(module: str, name: str) -> Any:
    """For a module's `__getattr__`: an ImportError that names ours for a name of PaddleSlim's."""
    if name in _INSTEAD:
        raise ImportError(f"{module} has no {name}; use {_INSTEAD[name]} (docs/from_paddleslim.md)")
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
