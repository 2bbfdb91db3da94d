"""Which layer is it: how much each layer's quantization costs, and which bits each should have."""

from lowbit.analysis.analyze import Analysis, analyze
from lowbit.analysis.budget import Budget, LayerCost, parse_budget, propose_bits
from lowbit.analysis.proposal import proposed_recipe

__all__ = [
    "Analysis",
    "Budget",
    "LayerCost",
    "analyze",
    "parse_budget",
    "propose_bits",
    "proposed_recipe",
]
