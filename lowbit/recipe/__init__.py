"""What is quantized, and how. Start with `load.load_recipe` and `recipe.Recipe`.

| module | has |
|---|---|
| `load` | load_recipe: by name, file or values, in any dialect; list_recipes; dump_recipe |
| `recipe` | Recipe: ordered rules and settings, and the plan that they give each layer of a model |
| `rules`, `model_layers` | Rule and Match; the layers of a model that can be quantized |
| `spec` | TensorSpec; the one place where the words of a recipe become values |
| `plan` | Plan: a layer's three products, and whether they can run in integers |
| `dialects/` | PaddleSlim's quant_config, the YAML of low-precision training |
| `bundled/` | the recipes that come with the package |
"""

from lowbit.recipe.dialects.paddleslim import PACT, PaddleSlimConfig, parse_quant_config
from lowbit.recipe.load import RecipeEntry, dump_recipe, list_recipes, load_recipe, make_recipe
from lowbit.recipe.model_layers import ModelLayer, find_layers
from lowbit.recipe.plan import PRODUCTS, Forward, GradInput, GradWeight, Plan, operands_of
from lowbit.recipe.recipe import LayerPlan, Recipe, describe_layers
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
    "PaddleSlimConfig",
    "Plan",
    "Recipe",
    "RecipeEntry",
    "Rule",
    "TensorSpec",
    "describe_layers",
    "dump_recipe",
    "find_layers",
    "list_recipes",
    "load_recipe",
    "make_recipe",
    "operands_of",
    "parse_quant_config",
]
