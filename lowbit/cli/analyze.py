"""`lowbit analyze`: which layer is it, and which bits should each one have."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowbit.cli.evaluate import images_of
from lowbit.cli.opening import open_model
from lowbit.cli.options import ConfigFile, DeviceName, Overrides, TrustCode, recipe_option
from lowbit.errors import LowbitError

if TYPE_CHECKING:
    from lowbit.analysis import Analysis
    from lowbit.config.data import DataSplit
    from lowbit.layers import Preparation
    from lowbit.training.trained_model import TrainedModel

_BATCH = 50  # images at a time: the outputs of all layers are held for so many


def analyze(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint or run folder.", show_default=False)],
    recipe: Annotated[str | None, recipe_option("How to quantize a checkpoint that is in fp32.")] = None,
    images: Annotated[
        int, typer.Option(min=1, help="How many images, spread evenly over the validation data.")
    ] = 1000,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Propose bits under it: `4.5bits` a weight, or `200KB` in all."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The proposed recipe; left out: beside analysis.json."),
    ] = None,
    data_path: Annotated[
        Path | None, typer.Option(help="Validation images, instead of the config's: a folder or archive.")
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    device: DeviceName = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Rank the layers of a quantized model by what each one costs, and propose bits for them.

    Each layer is measured twice: the loss when it alone is quantized, and when it alone is not. The result
    is kept as `analysis.json` in the run folder; a second call, or one after Ctrl-C, goes on from there.

    **Examples**

    - `lowbit analyze runs/w4a4` names the layers that lose most
    - `lowbit analyze runs/digits --recipe qat_w4a4 --budget 4.5bits` writes a recipe
    """
    from lowbit.analysis import parse_budget
    from lowbit.api.analysis import propose
    from lowbit.layers import preparation_of

    wanted = None if budget is None else parse_budget(budget)
    if output is not None and wanted is None:
        raise LowbitError("--output is for the recipe of a --budget: give both")
    trained = open_model(checkpoint, config, override, trust_code=trust_code)
    split = images_of(trained, data_path)
    if split is None:
        raise LowbitError("the config has no DataLoader.Eval section; give the images with --data-path")
    found, folder = _analyze(trained, split, recipe, images, device, quiet=as_json)
    bits = None
    if wanted is not None:
        preparation = preparation_of(trained.model)
        bits = propose(preparation, found.ranking, wanted)
        file = output or folder / f"recipe_{budget.strip().replace(' ', '')}.yaml"
        _write_recipe(file, preparation, bits, f"{trained.source} under {wanted}")
    if as_json:
        print(json.dumps(vars(found) | {"proposed": bits}))
        return
    _print_table(found, bits)
    if bits is not None:
        print(f"Recipe: {file}  (lowbit train -c CONFIG --recipe {file})")


def _analyze(
    trained: TrainedModel,
    split: DataSplit,
    recipe: str | None,
    images: int,
    device: str | None,
    *,
    quiet: bool,
) -> tuple[Analysis, Path]:
    import paddle

    from lowbit.analysis import analyze as measure
    from lowbit.analysis.quantize import quantize_as
    from lowbit.analysis.store import FILE, Store, folder_of
    from lowbit.data.spread import SpreadDataset
    from lowbit.deploy.model_files import sha256
    from lowbit.layers import preparation_of
    from lowbit.machine import resolve_device
    from lowbit.training.display import PlainDisplay, open_display
    from lowbit.training.inputs import build_loader, check_class_count, open_section
    from lowbit.training.quantization import recipe_values

    paddle.set_device(resolve_device(device).name)
    if recipe is not None:
        quantize_as(trained, recipe, split)
    elif not trained.quantized:
        raise LowbitError(f"{trained.source} is in fp32: say with --recipe FILE how it is to be quantized")
    split = split.model_copy(update={"sampler": split.sampler.model_copy(update={"batch_size": _BATCH})})
    dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    check_class_count(dataset, len(trained.classes), "validation")
    loader = build_loader(split, SpreadDataset(dataset, images), training=False)
    folder = folder_of(trained.source)
    settings = {
        "images": len(loader.dataset),
        "data": split.dataset.model_dump(mode="json"),
        "recipe": recipe_values(preparation_of(trained.model).recipe),
    }
    store = Store(
        folder / FILE,
        checkpoint=trained.source.name,
        digest=sha256(trained.source),
        settings=settings,
    )
    how = "" if recipe is None else f" with {Path(recipe).name}"
    title = f"{trained.source.name}{how} on {len(loader.dataset)} images"
    fast = trained.config.Global.fast_convolutions
    with PlainDisplay(silent=True) if quiet else open_display() as display:
        return measure(trained.model, loader, store, title=title, display=display, fast=fast), folder


def _write_recipe(file: Path, preparation: Preparation, bits: dict[str, int], why: str) -> None:
    from lowbit.analysis import proposed_recipe
    from lowbit.recipe import dump_recipe
    from lowbit.training.files import write_atomically

    text = (
        f"# Bits proposed by `lowbit analyze` for {why}.\n{dump_recipe(proposed_recipe(preparation, bits))}"
    )
    write_atomically(file, lambda draft: draft.write_text(text, "utf-8"))


def _print_table(found: Analysis, bits: dict[str, int] | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 10_000)
    console.print(Text(f"{found.title}: the layers that cost most first"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = ["layer", "bits", "only it:\nloss", "\ntop-1", "\nanswers", "all but it:\nloss", "\ntop-1"]
    roles = ["weight", "input"]
    if any(row["gradient_sqnr"] is not None for row in found.ranking):
        roles.append("gradient")
    for role in roles:
        titles += [f"{role}\nSQNR", "\nclipped", "\ndead"]
    titles += ["proposed\nbits"] if bits is not None else []
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number < 2 else "right", overflow="fold")
    for row in found.ranking:
        cells = [row["name"], row["bits"], f"{row['only_loss']:+.4f}", f"{row['only_top1']:.2%}"]
        cells += [f"{row['divergence']:.5f}", f"{-row['without_loss']:+.4f}", f"{row['without_top1']:.2%}"]
        for role in roles:
            sqnr, clipped, dead = (row[f"{role}_{key}"] for key in ("sqnr", "clipped", "dead"))
            cells += ["" if sqnr is None else f"{sqnr:.1f} dB", "" if clipped is None else f"{clipped:.1%}"]
            cells.append("" if dead is None else str(dead))
        if bits is not None:
            cells.append(str(bits.get(row["name"], "")))
        table.add_row(*map(Text, cells))
    console.print(table)
    for name, whole in (("full precision", found.full), ("quantized", found.quantized)):
        console.print(f"{name}: loss {whole['loss']:.4f}, top-1 {whole['top1']:.2%}")
