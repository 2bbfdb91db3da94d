"""`lowbit export`: a trained model becomes files for Paddle Inference, compared before they are used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowbit.cli.opening import open_model
from lowbit.cli.options import ConfigFile, Overrides, Weights
from lowbit.errors import LowbitError, did_you_mean

if TYPE_CHECKING:
    from lowbit.training.trained_model import TrainedModel

FORMATS = ("paddle", "paddle-int8")


def export(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="A run folder or a checkpoint.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Where to; a run's default is its folder `export`.")
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="`paddle`, or `paddle-int8`: a quantized model in int8, in the folder `int8` inside.",
        ),
    ] = "paddle",
    config: ConfigFile = None,
    override: Overrides = None,
    pretrained: Weights = None,
) -> None:
    """Export a trained model to Paddle Inference: inference.json, inference.pdiparams and inference.yml.

    **Examples**

    - `lowbit export runs/digits` writes runs/digits/export
    - `lowbit export -c ResNet18.yaml --pretrained ResNet18.pdparams --output inference`
    - `lowbit export runs/w8a8 --format paddle-int8` writes runs/w8a8/export/int8
    """
    if format_ not in FORMATS:
        raise LowbitError(f'no format "{format_}"; {did_you_mean(format_, FORMATS)}')
    trained = open_model(checkpoint, config, override, pretrained)
    settings = trained.config
    if output is None:
        run = checkpoint if checkpoint is not None and checkpoint.is_dir() else None
        output = run / "export" if run else Path(settings.Global.save_inference_dir)
    if format_ == "paddle":
        _export_paddle(trained, output)
    else:
        _export_paddle_int8(trained, output / "int8")


def _export_paddle(trained: TrainedModel, output: Path) -> None:
    from lowbit.deploy import export_model

    exported = export_model(trained.model, output, **_description(trained))
    print(f"Exported {trained.source} to {exported.directory} ({exported.size / 1e6:.1f} MB)")
    print("Its outputs in Paddle Inference equal the trained model's (compared before it was put there).")


def _export_paddle_int8(trained: TrainedModel, output: Path) -> None:
    from lowbit.deploy import export_paddle_int8

    exported = export_paddle_int8(trained.model, output, **_description(trained))
    size = exported.model.size
    print(
        f"Exported {trained.source} to {output}: {len(exported.layers)} layers in int8, {size / 1e6:.1f} MB "
        f"({exported.fp32_size / size:.1f}x smaller than fp32)"
    )


def _description(trained: TrainedModel) -> dict[str, Any]:
    return {
        "model_name": trained.config.Arch.name,
        "image_shape": trained.config.Global.image_shape,
        "transform_ops": trained.preprocessing,
        "classes": trained.classes,
    }
