"""Names of PaddleSlim that lowbit does not have, each with what takes its place."""

from __future__ import annotations

from typing import Any

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
