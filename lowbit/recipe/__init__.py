"""What is quantized, and how: specs, plans, rules, the recipe, and the dialects it is written in."""

from lowbit.recipe.describe import describe_layers
from lowbit.recipe.dialects.lowbit_yaml import dump_recipe
from lowbit.recipe.dialects.paddleslim import PACT, QuantConfig, parse_quant_config
from lowbit.recipe.load import load_recipe, make_recipe
from lowbit.recipe.model_layers import ModelLayer, find_layers
from lowbit.recipe.plan import PRODUCTS, Forward, GradInput, GradWeight, Plan, operands_of
from lowbit.recipe.recipe import LayerPlan, Recipe
from lowbit.recipe.rules import Match, Rule
from lowbit.recipe.spec import FULL_SPEC, TensorSpec

__all__ = [
    "FULL_SPEC",
    "PACT",
    "PRODUCTS",
    "Forward",
    "GradInput",
    "GradWeight",
    "LayerPlan",
    "Match",
    "ModelLayer",
    "Plan",
    "QuantConfig",
    "Recipe",
    "Rule",
    "TensorSpec",
    "describe_layers",
    "dump_recipe",
    "find_layers",
    "load_recipe",
    "make_recipe",
    "operands_of",
    "parse_quant_config",
]
