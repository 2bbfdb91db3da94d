"""`lowbit export`: a trained model becomes files for Paddle Inference, compared before they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.opening import open_model
from lowbit.cli.options import ConfigFile, Overrides, Weights


def export(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="A run folder or a checkpoint.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Where to; a run's default is its folder `export`.")
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    pretrained: Weights = None,
) -> None:
    """Export a trained model to Paddle Inference: inference.json, inference.pdiparams and inference.yml.

    **Examples**

    - `lowbit export runs/digits` writes runs/digits/export
    - `lowbit export -c ResNet18.yaml --pretrained ResNet18.pdparams --output inference`
    """
    from lowbit.deploy import export_model

    trained = open_model(checkpoint, config, override, pretrained)
    settings = trained.config
    if output is None:
        run = checkpoint if checkpoint is not None and checkpoint.is_dir() else None
        output = run / "export" if run else Path(settings.Global.save_inference_dir)
    exported = export_model(
        trained.model,
        output,
        model_name=settings.Arch.name,
        image_shape=settings.Global.image_shape,
        transform_ops=trained.preprocessing,
        classes=trained.classes,
    )
    print(f"Exported {trained.source} to {exported.directory} ({exported.size / 1e6:.1f} MB)")
    print("Its outputs in Paddle Inference equal the trained model's (compared before it was put there).")
