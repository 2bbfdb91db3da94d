"""`lowbit calibrate` and `lowbit quantize`: a trained model is quantized without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lowbit.cli.export import ExportFormats, ExportTarget, export
from lowbit.cli.options import (
    AsJson,
    CalibrationBatch,
    CalibrationData,
    CalibrationSteps,
    DeviceName,
    Overrides,
    Quiet,
    RequiredConfig,
    RunFolder,
    TrainedWeights,
    given,
    recipe_option,
)
from lowbit.config import load_config
from lowbit.config.load import parse_override
from lowbit.errors import LowbitError


def calibrate(
    config: RequiredConfig,
    pretrained: TrainedWeights = None,
    recipe: Annotated[str | None, recipe_option("What is quantized how, such as `ptq_w8a8`.")] = None,
    data_path: CalibrationData = None,
    steps: CalibrationSteps = None,
    batch_size: CalibrationBatch = None,
    output_dir: RunFolder = None,
    device: DeviceName = None,
    override: Overrides = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Quantize a trained model without training it (post-training quantization).

    **Examples**

    - `lowbit calibrate -c digits --pretrained runs/digits/checkpoints/best.pdparams
      --recipe ptq_w8a8 --output-dir runs/ptq`
    - `lowbit eval runs/ptq` compares it with the fp32 model, `lowbit export runs/ptq` exports it
    """
    from lowbit.training.run_directory import SUMMARY_FILE

    folder = calibrate_as_asked(
        config,
        pretrained=pretrained,
        recipe=recipe,
        data_path=data_path,
        steps=steps,
        batch_size=batch_size,
        output_dir=output_dir,
        device=device,
        override=override,
        quiet=quiet,
        silent=as_json,
    )
    if as_json:
        print((folder / SUMMARY_FILE).read_text("utf-8"), end="")


def calibrate_as_asked(
    config: Path,
    *,
    pretrained: str | None,
    recipe: str | dict[str, Any] | None,
    data_path: Path | None,
    steps: int | None,
    batch_size: int | None,
    output_dir: Path | None,
    device: str | None,
    override: list[str] | None,
    quiet: bool = False,
    silent: bool = False,
) -> Path:
    """Calibrates as the options say; the run folder. A recipe is a name, a file, or its values."""
    from lowbit.training.post_training import calibrate_run, calibration_config

    settings = load_config(
        config,
        override or (),
        given(
            output_dir=("Global.output_dir", str(output_dir) if output_dir else None),
            device=("Global.device", device),
            pretrained=("Global.pretrained_model", pretrained),
            recipe=("Recipe", recipe),
        ),
    )
    named = [parse_override(item)[0] for item in override or ()]
    return calibrate_run(
        calibration_config(settings, data_path=data_path, steps=steps, batch_size=batch_size),
        insist_on_device=device is not None or "Global.device" in named,
        quiet=quiet,
        silent=silent,
    )


def quantize(
    config: RequiredConfig,
    pretrained: TrainedWeights = None,
    algo: Annotated[
        str | None,
        typer.Option(
            metavar="OBSERVER",
            help="How scales are chosen: `minmax`, `mse`, `percentile(99.9)`, `kl` or `hist`; left out: the "
            "way that was best here.",
        ),
    ] = None,
    recipe: Annotated[
        str | None, recipe_option("What is quantized how, instead of 8 bits with --algo.")
    ] = None,
    data_path: CalibrationData = None,
    steps: CalibrationSteps = None,
    batch_size: CalibrationBatch = None,
    output_dir: RunFolder = None,
    format_: ExportFormats = None,
    target: ExportTarget = None,
    device: DeviceName = None,
    override: Overrides = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Quantize a trained model without training it, and export it: `calibrate` and `export` in one.

    **Examples**

    - `lowbit quantize -c digits --pretrained runs/digits/checkpoints/best.pdparams
      --output-dir runs/ptq`
    - `lowbit verify runs/ptq` proves that the exported model computes the same
    """
    from lowbit.api.deploy import check_formats
    from lowbit.training.post_training import ptq_recipe

    if algo is not None and recipe is not None:
        raise LowbitError("--algo chooses the observer of the 8-bit recipe: leave it out with --recipe")
    check_formats(format_, target)  # before the work begins
    chosen = recipe or ptq_recipe(algo)
    folder = calibrate_as_asked(
        config,
        pretrained=pretrained,
        recipe=chosen,
        data_path=data_path,
        steps=steps,
        batch_size=batch_size,
        output_dir=output_dir,
        device=device,
        override=override,
        quiet=quiet,
        silent=as_json,
    )
    export(
        folder, format_=format_, target=target, trust_code=True, quiet=quiet, as_json=as_json
    )  # the config named the model
