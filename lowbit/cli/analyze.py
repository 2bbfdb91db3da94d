"""`lowbit analyze`: which layer is it, and which bits should each one have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowbit.cli.evaluate import images_of
from lowbit.cli.opening import open_model
from lowbit.cli.options import (
    AsJson,
    ConfigFile,
    DeviceName,
    Overrides,
    Quiet,
    TrustCode,
    Wide,
    open_progress,
    recipe_option,
    show,
)
from lowbit.errors import LowbitError

if TYPE_CHECKING:
    from lowbit.analysis import Analysis
    from lowbit.config.data import DataSplit
    from lowbit.recipe import Recipe
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
    wide: Wide = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Rank the layers of a quantized model by what each one costs, and propose bits for them.

    Each layer is measured twice: the loss when it alone is quantized, and when it alone is not. The result
    is kept as `analysis.json` in the run folder; a second call, or one after Ctrl-C, goes on from there.

    **Examples**

    - `lowbit analyze runs/w4a4` names the layers that lose most
    - `lowbit analyze runs/digits --recipe qat_w4a4 --budget 4.5bits` writes a recipe
    """
    from lowbit.analysis import parse_budget
    from lowbit.api.analysis import analysis_of

    wanted = None if budget is None else parse_budget(budget)
    if output is not None and wanted is None:
        raise LowbitError("--output is for the recipe of a --budget: give both")
    trained = open_model(checkpoint, config, override, trust_code=trust_code)
    split = images_of(trained, data_path)
    if split is None:
        raise LowbitError("the config has no DataLoader.Eval section; give the images with --data-path")
    measured, folder = _analyze(trained, split, recipe, images, device, quiet=quiet or as_json)
    found = analysis_of(measured, trained.model, wanted, title=measured.title)
    if found.recipe is not None:
        file = output or folder / f"recipe_{budget.strip().replace(' ', '')}.yaml"
        _write_recipe(file, found.recipe, f"{trained.source} under {wanted}")
    if as_json:
        bits = None if wanted is None else {one.name: one.proposed_bits for one in found.layers}
        print(json.dumps(vars(measured) | {"proposed": bits}))
        return
    show(found, wide=wide)
    if found.recipe is not None:
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
    from lowbit.analysis.partial_quantization import quantize_as
    from lowbit.analysis.store import FILE, Store, folder_of
    from lowbit.data.dataset import SpreadDataset
    from lowbit.deploy.model_files import sha256
    from lowbit.machine import resolve_device
    from lowbit.nn import preparation_of
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
    with open_progress(quiet=quiet) as display:
        return measure(trained.model, loader, store, title=title, display=display, fast=fast), folder


def _write_recipe(file: Path, recipe: Recipe, why: str) -> None:
    from lowbit.files import write_atomically
    from lowbit.recipe import dump_recipe

    text = f"# Bits proposed by `lowbit analyze` for {why}.\n{dump_recipe(recipe)}"
    write_atomically(file, lambda draft: draft.write_text(text, "utf-8"))
