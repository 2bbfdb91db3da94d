"""`tools/train_qt.py`, `tools/train_qat.py` and `tools/eval_qt.py`: train with a recipe, then test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowbit.cli.options import (
    AmpDtypeName,
    AmpLevelName,
    BatchNormBatches,
    ConfigFile,
    DeviceName,
    Overrides,
    RequiredConfig,
    RunFolder,
    TeacherName,
    TrustCode,
    complete_model,
    recipe_option,
    show,
)
from lowbit.config import Config, load_config, with_data_path
from lowbit.config.load import given_options, parse_override
from lowbit.errors import LowbitError

if TYPE_CHECKING:
    from lowbit.recipe import Recipe


_QT_EXAMPLE = "qt_W4_mse_det__A4_mse_det__G4_minmax_sto"
_QAT_EXAMPLE = "qat_w4_mse_a4_mse"


def _script(check: Callable[[Recipe, str], None], example: str, help_: str) -> Callable[..., None]:
    """Both scripts have the same options; `check` says which recipes are for which."""

    def train(
        config: RequiredConfig,
        override: Overrides = None,
        recipe: Annotated[
            str | None,
            recipe_option(
                "What is quantized how; default: `Recipe` of the config.", "--recipe", "--quant-config"
            ),
        ] = None,
        model: Annotated[
            str | None, typer.Option(help="Another model than the config's.", autocompletion=complete_model)
        ] = None,
        data_path: Annotated[
            str | None, typer.Option(help="A folder or archive of images, instead of the config's.")
        ] = None,
        batch_size: Annotated[
            int | None, typer.Option("--batch-size", "-b", min=1, help="Images a step and process.")
        ] = None,
        epochs: Annotated[int | None, typer.Option(min=1, help="Times through the training data.")] = None,
        lr: Annotated[float | None, typer.Option(help="Learning rate at the start.")] = None,
        output_dir: RunFolder = None,
        pretrained: Annotated[str | None, typer.Option(metavar="FILE", help="Weights to start from.")] = None,
        resume: Annotated[str | None, typer.Option(help="A checkpoint to continue from, or `auto`.")] = None,
        teacher: TeacherName = None,
        finetune_epochs: Annotated[
            int | None,
            typer.Option("--finetune_epochs", help="So many last epochs with gradients in full precision."),
        ] = None,
        device: DeviceName = None,
        amp_level: AmpLevelName = None,
        amp_dtype: AmpDtypeName = None,
    ) -> None:
        from lowbit.training.config_check import read_config

        options = given_options(
            recipe=recipe,
            model=model,
            batch_size=batch_size,
            epochs=epochs,
            lr=lr,
            output_dir=output_dir,
            pretrained=pretrained,
            resume=resume,
            teacher=teacher,
            finetune_epochs=finetune_epochs,
            device=device,
            amp_level=amp_level,
            amp_dtype=amp_dtype,
        )
        settings = read_config(config, override or (), options)
        if "checkpoint_dir" not in settings.Global.model_fields_set:
            settings.Global.checkpoint_dir = "."  # the ecosystem's tools look for latest.pdparams there
        if data_path is not None:
            settings = with_data_path(settings, data_path)
        _check_recipe(settings, check, example)
        named = [parse_override(item)[0] for item in override or ()]
        from lowbit.training.loop import train as run_training

        run_training(settings, insist_on_device=device is not None or "Global.device" in named)

    train.__doc__ = help_
    return train


def _check_recipe(config: Config, check: Callable[[Recipe, str], None], example: str) -> None:
    from lowbit.training.quantization import recipe_of

    recipe, source = recipe_of(config), config.recipe_source
    if recipe is None:
        raise LowbitError(
            f"there is no recipe that says what is quantized: give --recipe NAME, such as {example}, or "
            "Recipe in the config"
        )
    check(recipe, source if isinstance(source, str) else "the config's recipe")


def _check_qt(recipe: Recipe, name: str) -> None:
    if not recipe.quantizes_gradients:
        raise LowbitError(
            f"{name} quantizes no gradients, which is quantization-aware training: use tools/train_qat.py, "
            f"or a recipe with gradients, such as {_QT_EXAMPLE}"
        )


def _check_qat(recipe: Recipe, name: str) -> None:
    if recipe.quantizes_gradients:
        raise LowbitError(
            f"{name} quantizes gradients, which is low-precision training: use tools/train_qt.py, or a "
            f"recipe without gradients, such as {_QAT_EXAMPLE}"
        )


train_qt = _script(
    _check_qt,
    _QT_EXAMPLE,
    f"""Train in low precision: weights, activations and gradients in few bits.

    **Examples**

    - `python tools/train_qt.py -c digits --recipe {_QT_EXAMPLE}`
    - `python tools/train_qt.py -c ResNet18.yaml -o Global.epochs=2 --recipe FILE --data-path ./imagenet`
    """,
)
train_qat = _script(
    _check_qat,
    _QAT_EXAMPLE,
    f"""Quantization-aware training: weights and activations in few bits, gradients in full precision.

    **Example**: `python tools/train_qat.py -c digits --recipe {_QAT_EXAMPLE}`
    """,
)


def eval_qt(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="A run folder or a checkpoint.", show_default=False)
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    pretrained: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The trained weights; default: Global.pretrained_model."),
    ] = None,
    data_path: Annotated[
        Path | None, typer.Option(help="A folder or archive of images, instead of the config's.")
    ] = None,
    bn_batches: BatchNormBatches = None,
    device: DeviceName = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Test a quantized model as quantized, by its weights alone, and in full precision.

    The same as `lowbit eval --table`.

    **Examples**

    - `python tools/eval_qt.py runs/w4a4g4`
    - `python tools/eval_qt.py -c digits -o Global.pretrained_model=runs/w4a4g4/latest.pdparams`
    """
    if checkpoint is None and pretrained is None and config is not None:
        named = load_config(config, override or ()).pretrained
        pretrained = Path(named) if named else None
    if checkpoint is None and config is None:
        checkpoint, pretrained = pretrained, None  # training left all that is needed next to the weights
    if checkpoint is None and pretrained is None:
        raise LowbitError("give a checkpoint (or run folder), or -c CONFIG with --pretrained WEIGHTS")
    from lowbit.api.evaluation import evaluate

    found = evaluate(
        checkpoint,
        config,
        override or (),
        pretrained=pretrained,
        data_path=data_path,
        device=device,
        table=True,
        bn_batches=bn_batches,
        trust_code=trust_code,
        quiet=as_json,
    )
    if as_json:
        print(json.dumps([asdict(row) for row in found.rows]))
    else:
        show(found)
