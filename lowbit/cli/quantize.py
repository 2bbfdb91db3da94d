"""`lowbit calibrate` and `lowbit quantize`: a trained model is quantized without training."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lowbit.cli.export import ExportForm, ExportFormats, ExportTarget, NoLatency
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
    print_summary,
    recipe_option,
    show,
)


def calibrate(
    config: RequiredConfig,
    pretrained: TrainedWeights = None,
    recipe: Annotated[str | None, recipe_option("The recipe, such as `ptq_w8a8`.")] = None,
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
    from lowbit.api import runs

    folder = runs.calibrate(
        config,
        override or (),
        pretrained=pretrained,
        recipe=recipe,
        data_path=data_path,
        steps=steps,
        batch_size=batch_size,
        output_dir=output_dir,
        device=device,
        quiet=quiet,
        silent=as_json,
    )
    if as_json:
        print_summary(folder)


def quantize(
    config: RequiredConfig,
    pretrained: TrainedWeights = None,
    algo: Annotated[
        str | None,
        typer.Option(
            metavar="OBSERVER",
            help="How scales are chosen: `minmax`, `mse`, `percentile(99.9)`, `kl` or `hist`; default: the "
            "way that was best here.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        recipe_option("The recipe, instead of 8 bits (7-bit weights without VNNI) with --algo."),
    ] = None,
    data_path: CalibrationData = None,
    steps: CalibrationSteps = None,
    batch_size: CalibrationBatch = None,
    output_dir: RunFolder = None,
    format_: ExportFormats = None,
    form: ExportForm = None,
    target: ExportTarget = None,
    no_latency: NoLatency = False,
    device: DeviceName = None,
    override: Overrides = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Quantize a trained model without training, and export it: `calibrate` and `export` in one.

    **Examples**

    - `lowbit quantize -c digits --pretrained runs/digits/checkpoints/best.pdparams
      --output-dir runs/ptq`
    - `lowbit verify runs/ptq` compares the exported model with the calibrated one
    """
    from lowbit.api import runs

    made = runs.quantize(
        config,
        override or (),
        pretrained=pretrained,
        algo=algo,
        recipe=recipe,
        data_path=data_path,
        steps=steps,
        batch_size=batch_size,
        output_dir=output_dir,
        formats=format_,
        form=form,
        target=target,
        latency=not no_latency,
        device=device,
        quiet=quiet,
        silent=as_json,
    )
    if as_json:
        print(json.dumps(made.to_dict(), indent=2, ensure_ascii=False))
    else:
        show(made)
