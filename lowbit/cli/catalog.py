"""`lowbit recipes`, `lowbit models` and `lowbit data`: what comes with lowbit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from lowbit.cli.options import AsJson

Source = Annotated[
    Literal["lowbit", "ppcls"],
    typer.Option("--from", help="Whose models: lowbit's, or PaddleClas's (its package ppcls)."),
]
NamesOnly = Annotated[bool, typer.Option("--quiet", "-q", help="Print the names only.")]


def recipes(quiet: NamesOnly = False, as_json: AsJson = False) -> None:
    """List the bundled recipes with description and measured accuracy.

    **Examples**

    - `lowbit recipes`
    - `lowbit plan resnet20 --recipe qat_w4a4` shows one in full
    - `lowbit train -c digits --recipe qat_w4a4` trains with it
    """
    from lowbit.recipe import list_recipes

    found = list_recipes()
    if as_json:
        _print_json(recipe.to_dict() for recipe in found)
        return
    if quiet:
        print(*(recipe.name for recipe in found), sep="\n")
        return
    console = Console(highlight=False)
    for kind in dict.fromkeys(recipe.kind for recipe in found):
        console.print(Text(kind, "bold"))
        for recipe in (recipe for recipe in found if recipe.kind == kind):
            _print_entry(console, recipe.name, recipe.description, f"Reached: {recipe.reached}")


def models(source: Source = "lowbit", quiet: NamesOnly = False, as_json: AsJson = False) -> None:
    """List the models and bundled configs, or the models of PaddleClas.

    **Examples**

    - `lowbit models`
    - `lowbit models --from ppcls`
    - `lowbit train -c digits` trains by a config, `-o Arch.name=resnet32` with another model
    """
    from lowbit.config import list_configs
    from lowbit.models import list_models, list_ppcls_models

    networks = list_ppcls_models() if source == "ppcls" else list_models()
    configs = [] if source == "ppcls" else list_configs()
    if as_json:
        entries: list[Mapping[str, object]] = [{"type": "model"} | model.to_dict() for model in networks]
        _print_json([*entries, *({"type": "config"} | config.to_dict() for config in configs)])
        return
    if quiet:
        names = [model.name for model in networks] + [config.name for config in configs]
        print(*names, sep="\n")
        return
    console = Console(highlight=False)
    console.print(Text("Models (Arch.name; your own is package.module:Class)", "bold"))
    for model in networks:
        also = f" (also {', '.join(model.aliases)})" if model.aliases else ""
        _print_entry(console, model.name + also, model.description)
    if not configs:
        return
    console.print(Text("Configs (-c NAME)", "bold"))
    for config in configs:
        _print_entry(console, config.name, config.description, f"Model: {config.model}")


def _print_json(entries: Iterable[Mapping[str, object]]) -> None:
    typer.echo(json.dumps(list(entries), indent=2, ensure_ascii=False))


def _print_entry(console: Console, name: str, *lines: str) -> None:
    """The name, and below it what is said about it, wrapped between words."""
    console.print(Padding(Text(name, "cyan"), (0, 0, 0, 2), expand=False))
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 4), expand=False))


data_app = typer.Typer(help="Make small data sets without a network.", no_args_is_help=True)


@data_app.callback()
def _data() -> None:
    """Make small data sets without a network."""


@data_app.command("lite")
def lite(
    directory: Annotated[Path, typer.Argument(help="Where to write train/, val/ and lite_data.tar.")] = Path(
        "lite_data"
    ),
    tar: Annotated[bool, typer.Option(help="Also pack it as lite_data.tar.")] = True,
) -> None:
    """Write lite data: 16 training and 16 validation images in class folders, the same bytes every time.

    **Example**: `lowbit data lite ./lite_data`, then `python train.py --data-path ./lite_data --epochs 2`
    """
    from lowbit.data import write_lite_data

    write_lite_data(directory, tar=tar)
    print(f"Lite data: {directory}" + (" (and lite_data.tar in it)" if tar else ""))
