"""`lowbit analyze`: the sensitivity of each layer, and bits per layer under a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import (
    AsJson,
    ConfigFile,
    DeviceName,
    Overrides,
    Quiet,
    TrustCode,
    Wide,
    recipe_option,
    show,
)


def analyze(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint or run folder.", show_default=False)],
    recipe: Annotated[str | None, recipe_option("How to quantize a checkpoint that is in fp32.")] = None,
    images: Annotated[
        int, typer.Option(min=1, help="How many images, spread evenly over the validation data.")
    ] = 1000,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Propose bits per layer: `4.5bits` per weight, or `200KB` in all."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The proposed recipe; default: next to analysis.json."),
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
    """Rank the layers of a quantized model by the cost of their quantization, and propose bits.

    Each layer is measured twice: the loss when only it is quantized, and when only it is not. The result
    is saved as `analysis.json` in the run folder; a second call, or one after Ctrl-C, continues from there.

    **Examples**

    - `lowbit analyze runs/w4a4` shows the most sensitive layers
    - `lowbit analyze runs/digits --recipe qat_w4a4 --budget 4.5bits` writes a recipe
    """
    from lowbit.api.analysis import analyze_run

    found = analyze_run(
        checkpoint,
        recipe=recipe,
        images=images,
        budget=budget,
        output=output,
        data_path=data_path,
        config=config,
        override=override or (),
        device=device,
        trust_code=trust_code,
        quiet=quiet or as_json,
    )
    if as_json:
        print(json.dumps(found.details))
        return
    show(found, wide=wide)
    if found.recipe_file is not None:
        print(f"Recipe: {found.recipe_file}  (lowbit train -c CONFIG --recipe {found.recipe_file})")
