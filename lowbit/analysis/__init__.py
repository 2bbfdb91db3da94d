"""Which layer is it: how much each layer's quantization costs, and which bits each should have."""

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
