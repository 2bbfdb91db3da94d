"""`lowbit calibrate`: a trained model is quantized without training, into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import DeviceName, Overrides, given
from lowbit.config import load_config
from lowbit.config.load import parse_override


def calibrate(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="A config with PaddleClas's sections.")
    ],
    pretrained: Annotated[
        str | None, typer.Option(metavar="FILE", help="The trained weights (.pdparams or .safetensors).")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="FILE", help="What is quantized how; `recipes/ptq_w8a8.yaml`.")
    ] = None,
    data_path: Annotated[
        Path | None,
        typer.Option(help="Images to calibrate on: a folder, an archive or a list file; left out: Train's."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Batches; left out: as many as the recipe says.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images a batch; left out: as in the config's Train.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    device: DeviceName = None,
    override: Overrides = None,
) -> None:
    """Quantize a trained model without training it (post-training quantization).

    **Examples**

    - `lowbit calibrate -c configs/digits.yaml --pretrained runs/digits/checkpoints/best.pdparams
      --recipe recipes/ptq_w8a8.yaml --output-dir runs/ptq`
    - `lowbit eval runs/ptq` compares it with the fp32 model, `lowbit export runs/ptq` exports it
    """
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
    calibrate_run(
        calibration_config(settings, data_path=data_path, steps=steps, batch_size=batch_size),
        insist_on_device=device is not None or "Global.device" in named,
    )
