"""`lowbit quantize`: a trained model becomes a quantized, exported one, without training."""

from __future__ import annotations

from typing import Annotated

import typer

from lowbit.cli.calibrate import calibrate_as_asked
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
    recipe_option,
)
from lowbit.errors import LowbitError


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
        str | None, recipe_option("What is quantized how, instead of 8 bits (weights 7 without VNNI) with --algo.")
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
    from lowbit.deploy.onnx import resolve_target
    from lowbit.training.post_training import ptq_recipe

    if algo is not None and recipe is not None:
        raise LowbitError("--algo chooses the observer of the 8-bit recipe: leave it out with --recipe")
    check_formats(format_, target)  # before the work begins
    # Products of 8-bit weights saturate without VNNI, or are slow where they do not.
    chosen = recipe or ptq_recipe(algo, weight_bits=7 if resolve_target(target) == "avx2" else 8)
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
