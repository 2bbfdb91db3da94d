"""`lowbit train`: a config becomes a run folder with checkpoints and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import (
    AmpDtypeName,
    AmpLevelName,
    DeviceName,
    Overrides,
    RequiredConfig,
    TeacherName,
    check_amp,
    given,
    recipe_option,
)
from lowbit.config import load_config
from lowbit.config.load import parse_override


def train(
    config: RequiredConfig,
    override: Overrides = None,
    output_dir: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How often the training data is gone through.")] = None,
    device: DeviceName = None,
    pretrained: Annotated[
        str | None, typer.Option(metavar="FILE", help="Weights to start from (.pdparams or .safetensors).")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT", help="Go on from a checkpoint; `auto`: from the latest of the folder."
        ),
    ] = None,
    recipe: Annotated[str | None, recipe_option("Train quantized, in low precision or not.")] = None,
    teacher: TeacherName = None,
    executor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of quantized products: integer (in C++), simulate, or auto."),
    ] = None,
    finetune_epochs: Annotated[
        int | None,
        typer.Option(
            "--finetune_epochs", help="In low precision: so many last epochs with gradients in full."
        ),
    ] = None,
    amp_level: AmpLevelName = None,
    amp_dtype: AmpDtypeName = None,
) -> None:
    """Train a network.

    **Examples**

    - `lowbit train -c digits`
    - `lowbit train -c ResNet18.yaml -o Global.epochs=2 -o DataLoader.Train.sampler.batch_size=16`
    - `lowbit train -c digits --recipe qat_w4a4` trains in 4 bits
    - `lowbit train -c digits --recipe qat_w4a4 --pretrained W --teacher fp32`
    - `lowbit train -c digits --recipe qt_w4a4g4` with gradients in 4 bits, too
    - `lowbit train -c digits --resume auto` goes on after an interruption, bit for bit
    - `python -m paddle.distributed.launch --nproc_per_node=2 lowbit train -c …` with two processes
    """
    from lowbit.training.loop import train as run_training  # with Paddle: seconds that --help need not wait

    check_amp(amp_level, amp_dtype)
    settings = load_config(
        config,
        override or (),
        given(
            output_dir=("Global.output_dir", str(output_dir) if output_dir else None),
            epochs=("Global.epochs", epochs),
            device=("Global.device", device),
            pretrained=("Global.pretrained_model", pretrained),
            resume=("Global.checkpoints", resume),
            recipe=("Recipe", recipe),
            teacher=("Distillation.teacher", teacher),
            executor=("Global.executor", executor),
            finetune_epochs=("Global.finetune_epochs", finetune_epochs),
            amp_level=("AMP.level", amp_level),
            use_amp=("AMP.use_amp", None if amp_level is None else True),  # PaddleClas's files say False
            amp_dtype=("AMP.dtype", amp_dtype),
        ),
    )
    named = [parse_override(item)[0] for item in override or ()]
    asked = device is not None or "Global.device" in named
    run_training(settings, insist_on_device=asked)
