"""`lowbit plan`: what a recipe quantizes in a model, layer by layer, and what can run in integers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowbit.cli.options import ConfigFile, Overrides
from lowbit.config import load_config
from lowbit.errors import LowbitError

if TYPE_CHECKING:
    from lowbit.recipe import LayerPlan

_CLASSES = 1000  # ImageNet's, where nobody says


def plan(
    model: Annotated[
        str | None,
        typer.Argument(help="A model's name, or `package.module:Class`.", show_default=False),
    ] = None,
    recipe: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The recipe: lowbit's YAML, or a PaddleSlim quant_config as YAML."),
    ] = ...,
    config: ConfigFile = None,
    override: Overrides = None,
    num_classes: Annotated[
        int | None, typer.Option(min=1, help="Classes; left out: the config's, else 1000.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what a recipe quantizes: every layer, its three products, and whether they can run in integers.

    **Examples**

    - `lowbit plan resnet20 --recipe recipes/qat_w4a4.yaml`
    - `lowbit plan -c configs/digits.yaml --recipe recipes/qat_w8a8.yaml --json`
    """
    from lowbit.models import build_model
    from lowbit.recipe import describe_layers, load_recipe

    name, classes, kwargs = _chosen_model(model, config, override)
    loaded = load_recipe(recipe)
    count = num_classes or classes or _CLASSES
    layers = loaded.assign(build_model(name, count, **kwargs))
    if as_json:
        found = {"model": name, "num_classes": count, "recipe": str(recipe)}
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


def print_plan(layers: list[LayerPlan], title: str) -> None:
    """The table, below it why what is not in integers is not, and a sum."""
    # As wide as it must be where nobody watches: a folded table is no use to grep or to a file.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    backward = any(not assigned.plan.is_straight_through for assigned in layers)
    console.print(Text(title))
    console.print(_table(layers, backward))
    if not backward:
        console.print("Backward: straight-through (the gradients are not quantized).")
    for line in _reasons(layers):
        console.print(Text(line), soft_wrap=True)
    quantized = sum(not assigned.plan.is_full for assigned in layers)
    console.print(f"{quantized} of {len(layers)} layers are quantized.")


def _table(layers: list[LayerPlan], backward: bool) -> Table:
    from lowbit.recipe import PRODUCTS, operands_of

    products = {name: kind for name, kind in PRODUCTS.items() if backward or name == "forward"}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    for title in ("layer", "type", "weight"):
        table.add_column(title, overflow="fold")
    for name, kind in products.items():
        for operand in operands_of(kind()):
            table.add_column(f"{name}\n{operand}", overflow="fold")
    table.add_column("can run in integers", overflow="fold")
    for assigned in layers:
        layer, plan = assigned.layer, assigned.plan
        shape = "x".join(map(str, layer.shape))
        cells = [str(layer.index), " = ".join(layer.names), layer.type, shape]
        for name in products:
            product = getattr(plan, name)
            specs = operands_of(product).values() if product else ("straight-through", "")
            cells += map(str, specs)
        table.add_row(*(Text(cell) for cell in (*cells, _integers(assigned))))
    return table


def _integers(assigned: LayerPlan) -> str:
    if assigned.plan.is_full:
        return f"left as it is: {assigned.note or 'its grids are full'}"
    why = assigned.plan.runs_in_integers(assigned.layer.type)
    return ", ".join(product for product, reason in why.items() if reason is None) or "none"


def _reasons(layers: list[LayerPlan]) -> list[str]:
    """A line for every reason why a product that is quantized does not run in integers, with its layers."""
    found: dict[str, list[str]] = {}
    for assigned in layers:
        if assigned.plan.is_full:
            continue
        why = assigned.plan.runs_in_integers(assigned.layer.type)
        for product in assigned.plan.products():
            if reason := why[product.name]:
                found.setdefault(f"{product.name}: {reason}", []).append(assigned.layer.name)
    return [f"Not in integers, {reason}: {', '.join(names)}" for reason, names in found.items()]
