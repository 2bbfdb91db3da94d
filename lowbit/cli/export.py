"""`lowbit export`: a trained model becomes files for inference engines, compared before they are used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowbit.cli.opening import open_model
from lowbit.cli.options import ConfigFile, Overrides, TrustCode, Weights
from lowbit.errors import LowbitError, did_you_mean

if TYPE_CHECKING:
    from lowbit.training.trained_model import TrainedModel

FORMATS = ("paddle", "onnx", "paddle-int8")
ExportFormats = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT,…",
        help="`paddle`, `onnx`, and `paddle-int8` (a quantized model in int8, in the folder `int8` "
        "inside). Default: `paddle,onnx` for a quantized model, else `paddle`.",
        show_default=False,
    ),
]
ExportTarget = Annotated[
    str | None,
    typer.Option(
        help="Where the ONNX file will run: `avx2`, `vnni`, `arm` or `gpu`. Default: this machine.",
        show_default=False,
    ),
]


def export(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="A run folder or a checkpoint.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Where to; a run's default is its folder `export`.")
    ] = None,
    format_: ExportFormats = None,
    target: ExportTarget = None,
    config: ConfigFile = None,
    override: Overrides = None,
    pretrained: Weights = None,
    data_path: Annotated[
        Path | None,
        typer.Option(
            help="Training images to fix scales on that the model chooses in every call; left out: Train's."
        ),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Export a trained model to Paddle Inference and to ONNX (for ONNX Runtime, OpenVINO, TensorRT).

    Paddle: inference.json, inference.pdiparams and inference.yml. ONNX: inference.onnx, with the integers
    of a quantized model, and the same inference.yml. Scales that the model chooses anew in every call are
    fixed first, on training images.

    **Examples**

    - `lowbit export runs/digits` writes runs/digits/export
    - `lowbit export -c ResNet18.yaml --pretrained ResNet18.pdparams --output inference`
    - `lowbit export runs/w8a8 --format onnx --target avx2`
    - `lowbit export runs/w8a8 --format paddle-int8` writes runs/w8a8/export/int8
    """
    from lowbit.training.deployable import deployable

    formats = check_formats(format_, target)
    trained = open_model(checkpoint, config, override, pretrained, trust_code=trust_code)
    trained = deployable(trained, data_path=data_path)
    settings = trained.config
    if output is None:
        run = checkpoint if checkpoint is not None and checkpoint.is_dir() else None
        output = run / "export" if run else Path(settings.Global.save_inference_dir)
    export_trained(trained, output, formats, target)


def check_formats(format_: str | None, target: str | None) -> list[str] | None:
    """The words of --format; a misspelt one, or a misspelt target, is found before the work begins."""
    formats = None if format_ is None else [word.strip() for word in format_.split(",")]
    for word in formats or ():
        if word not in FORMATS:
            raise LowbitError(f'no format "{word}"; {did_you_mean(word, FORMATS)}')
    if target is not None:
        from lowbit.deploy.onnx import resolve_target

        resolve_target(target)
    return formats


def export_trained(
    trained: TrainedModel,
    output: Path,
    formats: list[str] | None,
    target: str | None = None,
    *,
    description: dict[str, Any] | None = None,
) -> None:
    """Exports a model in these formats, or in those that fit it; `description` replaces its config's."""
    from lowbit.deploy.model_files import sha256

    # Weights may be given without their ending; those that `verify` asks about are of a run.
    digest = sha256(trained.source) if trained.source.is_file() else None
    description = (description or _description(trained)) | {"checkpoint": digest}
    wanted = formats or (["paddle", "onnx"] if _is_quantized(trained) else ["paddle"])
    if target is not None and "onnx" not in wanted:
        raise LowbitError("--target is about the ONNX file: add --format onnx, or leave it out")
    for word in wanted:
        if word == "paddle":
            _export_paddle(trained, output, description)
        elif word == "onnx":
            _export_onnx(trained, output, description, target, asked_for=formats is not None)
            if "paddle" not in wanted:  # else the yml is that of the Paddle model beside it
                _describe(output, description)
        else:
            _export_paddle_int8(trained, output / "int8", description)


def _export_paddle(trained: TrainedModel, output: Path, description: dict[str, Any]) -> None:
    from lowbit.deploy import export_model

    exported = export_model(trained.model, output, **description)
    print(f"Exported {trained.source} to {exported.directory} ({exported.size / 1e6:.1f} MB)")
    print("Its outputs in Paddle Inference equal the trained model's (compared before it was put there).")


def _export_onnx(
    trained: TrainedModel, output: Path, description: dict[str, Any], target: str | None, *, asked_for: bool
) -> None:
    from lowbit.deploy import export_onnx

    try:
        made = export_onnx(
            trained.model,
            output / "inference.onnx",
            model_name=description["model_name"],
            image_shape=description["image_shape"],
            target=target,
            quantized=_is_quantized(trained),
            checkpoint=description["checkpoint"],
        )
    except LowbitError as error:
        if asked_for:
            raise
        (output / "inference.onnx").unlink(missing_ok=True)  # an earlier model's
        print(f"No ONNX file: {error}")
        return
    smaller = f", {made.fp32_size / made.size:.1f}x smaller than fp32 ({made.fp32_size / 1e6:.2f} MB)"
    print(f"Exported to {made.path} ({made.size / 1e6:.2f} MB{smaller if made.target else ''})")
    for note in made.notes:
        print(f"  {note}")


def _describe(output: Path, description: dict[str, Any]) -> None:
    """Write how images are prepared for the ONNX file, unless the Paddle model's file there says the same."""
    from lowbit.deploy import describe_inference, read_inference_yml, write_inference_yml

    new, path = describe_inference(**description, sha256={}), output / "inference.yml"
    if path.exists():
        old = read_inference_yml(path)
        if any(
            before != now
            for before, now in (
                (old.ops, new.ops),
                (old.classes, new.classes),
                (old.Global.image_shape, new.Global.image_shape),
            )
        ):
            (output / "inference.onnx").unlink(missing_ok=True)
            raise LowbitError(
                f"{path} is of another model, whose images are prepared otherwise: give another --output, or "
                "export both with --format paddle,onnx"
            )
    else:
        write_inference_yml(path, new)


def _is_quantized(trained: TrainedModel) -> bool:
    from lowbit.layers import has_quantized_layers

    return has_quantized_layers(trained.model)


def _export_paddle_int8(trained: TrainedModel, output: Path, description: dict[str, Any]) -> None:
    from lowbit.deploy import export_paddle_int8

    exported = export_paddle_int8(trained.model, output, **description)
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
