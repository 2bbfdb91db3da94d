"""`lowbit train`: a config becomes a run folder with checkpoints and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import (
    AmpDtypeName,
    AmpLevelName,
    AsJson,
    DeviceName,
    Overrides,
    Quiet,
    RequiredConfig,
    TeacherName,
    print_summary,
    recipe_option,
)


def train(
    config: RequiredConfig,
    override: Overrides = None,
    output_dir: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How often the training data is gone through.")] = None,
    device: DeviceName = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|FOLDER",
            help="Weights to start from (.pdparams, .safetensors), or a folder of such files.",
        ),
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
            "--finetune_epochs", help="In low precision: number of last epochs with full-precision gradients."
        ),
    ] = None,
    amp_level: AmpLevelName = None,
    amp_dtype: AmpDtypeName = None,
    data_path: Annotated[
        Path | None,
        typer.Option(help="Images instead of the config's: a folder or archive with train/ and val/."),
    ] = None,
    finetune: Annotated[
        bool,
        typer.Option(
            "--finetune",
            help="Train --pretrained weights further: chooses epochs, learning rate, warm-up and teacher "
            "for the images and the recipe, and prints them; options that are given win.",
        ),
    ] = False,
    ema: Annotated[
        float | None, typer.Option(metavar="DECAY", help="Deploy an average of the weights; such as 0.999.")
    ] = None,
    early_stop: Annotated[
        int | None, typer.Option(metavar="EPOCHS", help="Stop when top-1 has not improved for N epochs.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a network.

    **Examples**

    - `lowbit train -c digits`
    - `lowbit train -c ResNet18.yaml -o Global.epochs=2 -o DataLoader.Train.sampler.batch_size=16`
    - `lowbit train -c digits --recipe qat_w4a4` trains in 4 bits
    - `lowbit train -c digits --recipe qat_w4a4 --pretrained W --teacher fp32`
    - `lowbit train -c digits --recipe qt_w4a4g4` with 4-bit gradients
    - `lowbit train -c digits --recipe qat_w4a4 --pretrained W --finetune` chooses settings itself
    - `lowbit train -c my_images --data-path photos/ --ema 0.999 --early-stop 5`
    - `lowbit train -c digits --resume auto` continues after an interruption, bit for bit
    - `python -m paddle.distributed.launch --nproc_per_node=2 lowbit train -c …` with two processes
    """
    from lowbit.api import runs  # with Paddle: seconds that --help need not wait

    folder = runs.train(
        config,
        override or (),
        output_dir=output_dir,
        epochs=epochs,
        device=device,
        pretrained=pretrained,
        resume=resume,
        recipe=recipe,
        teacher=teacher,
        executor=executor,
        finetune_epochs=finetune_epochs,
        amp_level=amp_level,
        amp_dtype=amp_dtype,
        data_path=data_path,
        finetune=finetune,
        ema=ema,
        early_stop=early_stop,
        quiet=quiet,
        silent=as_json,
    )
    if as_json:
        print_summary(folder)
