"""`lowbit plan`: what a recipe quantizes in a model, layer by layer, and what can run in integers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lowbit.cli.options import ConfigFile, Overrides, complete_model, recipe_option
from lowbit.cli.plan_tables import print_plan
from lowbit.config import load_config
from lowbit.errors import LowbitError

_CLASSES = 1000  # ImageNet's, where nobody says


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model's name, or `package.module:Class`.",
            show_default=False,
            autocompletion=complete_model,
        ),
    ] = None,
    recipe: Annotated[str, recipe_option("The recipe, in any of its dialects.")] = ...,
    config: ConfigFile = None,
    override: Overrides = None,
    num_classes: Annotated[
        int | None, typer.Option(min=1, help="Classes; left out: the config's, else 1000.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what a recipe quantizes: every layer, its three products, and whether they can run in integers.

    **Examples**

    - `lowbit plan resnet20 --recipe qat_w4a4`
    - `lowbit plan resnet20 --recipe qt_W4_mse_det__A4_mse_det__G4_minmax_sto`
    - `lowbit plan -c digits --recipe qat_w8a8 --json`
    """
    from lowbit.models import build_model
    from lowbit.recipe import describe_layers, load_recipe

    name, classes, kwargs = _chosen_model(model, config, override)
    loaded = load_recipe(recipe)
    count = num_classes or classes or _CLASSES
    layers = loaded.assign(build_model(name, count, **kwargs))
    if as_json:
        found = {"model": name, "num_classes": count, "recipe": recipe}
        found["layers"] = describe_layers(layers)
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if num_classes is None and classes is None:
        print(f"{_CLASSES} classes assumed; --num-classes says otherwise", file=sys.stderr)
    print_plan(layers, f"{name} with {recipe}")


def _chosen_model(
    model: str | None, config: Path | None, override: list[str] | None
) -> tuple[str, int | None, dict[str, Any]]:
    if (model is None) == (config is None):
        raise LowbitError("give either a model's name or -c CONFIG, which names one")
    if config is None:
        if override:
            raise LowbitError("-o changes a setting of a config; give -c CONFIG, too")
        return model, None, {}
    settings = load_config(config, override or ())
    return settings.Arch.name, settings.num_classes, settings.Arch.kwargs
