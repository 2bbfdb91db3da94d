"""Which layer costs accuracy, and which bits each layer should have. Start with `analyze.analyze`.

| module | has |
|---|---|
| `analyze` | the measurement, batch after batch, stored in analysis.json; the ranking of the layers |
| `sensitivity` | the loss with one layer quantized, or with all but one |
| `operands` | error and histograms of each layer's weight, input and gradients |
| `bit_budget` | bits per layer under a budget, as a recipe |
"""

from lowbit.analysis.analyze import Measurement, analyze
from lowbit.analysis.bit_budget import Budget, LayerCost, parse_budget, propose_bits, proposed_recipe

__all__ = [
    "Budget",
    "LayerCost",
    "Measurement",
    "analyze",
    "parse_budget",
    "propose_bits",
    "proposed_recipe",
]
