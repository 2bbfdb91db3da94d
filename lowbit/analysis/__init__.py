"""Sensitivity of layers to quantization, and bits per layer under a budget."""

from lowbit.analysis.analyze import Analysis, analyze
from lowbit.analysis.bit_budget import Budget, LayerCost, parse_budget, propose_bits, proposed_recipe

__all__ = [
    "Analysis",
    "Budget",
    "LayerCost",
    "analyze",
    "parse_budget",
    "propose_bits",
    "proposed_recipe",
]
