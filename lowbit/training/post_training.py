"""Post-training quantization: a trained model's scales chosen from some images, without training it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from lowbit.accel.convolutions import fast_convolutions
from lowbit.config import Config, validate
from lowbit.errors import LowbitError
from lowbit.formatting import boxed
from lowbit.recipe.load import recipe_file_values
from lowbit.recipe.recipe import CalibrationSettings
from lowbit.training.checkpoint_manager import CheckpointManager
from lowbit.training.display import accuracy_line, open_display
from lowbit.training.evaluate import comparison_table
from lowbit.training.loop import begin_run, keep_baseline
from lowbit.training.quantization import recipe_of, recipe_values
from lowbit.training.run_directory import RunClock, RunDirectory, Summary
from lowbit.training.session import open_session

_BATCH_SIZE = 32
_WHAT_TO_DO = (
    "Do not deploy it. Use 8 bits (--recipe ptq_w8a8), or train with the quantization: lowbit train with a "
    "recipe such as qat_w4a4.",
)


def ptq_recipe(observer: str | None = None, *, weight_bits: Literal[7, 8] = 8) -> dict[str, Any]:
    """The recipe of 8 bits without training, as plain values; an `observer` replaces that of its inputs.

    Processors without VNNI want weights of 7 bits.

    >>> ptq_recipe("kl")["rules"][0]["forward"]["input"]["observer"]
    'kl'
    """
    values = recipe_file_values(f"ptq_w{weight_bits}a8")
    for rule in values["rules"] if observer is not None else ():
        if "input" in rule.get("forward", {}):
            rule["forward"]["input"]["observer"] = observer
    return values


def calibration_config(
    config: Config, *, data_path: Path | None = None, steps: int | None = None, batch_size: int | None = None
) -> Config:
    """The config of a run that calibrates: its training images, prepared as in evaluation.

    Augmented images would show the quantizers values that the deployed model never meets. `data_path` is a
    folder or archive that lowbit recognises, or a list file; `steps` takes the place of the recipe's own.
    """
    recipe = recipe_of(config)
    if recipe is None:
        raise LowbitError("calibration needs a recipe that says what is quantized: give --recipe FILE")
    if config.pretrained is None:
        raise LowbitError("calibration needs a trained model: give its weights with --pretrained FILE")
    if config.Global.reset_classifier:
        raise LowbitError("a new classifier would have to be trained first: leave out reset_classifier")
    if steps is not None:
        calibration = CalibrationSettings(**recipe.calibration.model_dump() | {"steps": steps})
        recipe = recipe.model_copy(update={"calibration": calibration})
    if not recipe.calibration.steps:
        raise LowbitError(
            "the recipe calibrates on no images: give --steps N, or calibration: {steps: 20} in the recipe"
        )
    values = config.model_dump(mode="json")
    # What training alone would use: nothing here is trained.
    values |= {"Recipe": recipe_values(recipe), "Slim": None, "AMP": None, "Distillation": None}
    values["Global"]["checkpoints"] = None
    values["DataLoader"]["Train"] = _images(values["DataLoader"], data_path, batch_size)
    return validate(values, {}, "calibrate")


def calibrate_run(
    config: Config, *, insist_on_device: bool = False, quiet: bool = False, silent: bool = False
) -> Path:
    """Calibrates as a config of `calibration_config` says; returns a run folder like that of training.

    It holds `best` and `latest` (`best` where there are validation images) and `fp32`, so that `eval`,
    `export` and `verify` find there what they need.
    """
    clock = RunClock(total=0)
    session = open_session(config, insist_on_device=insist_on_device)
    run = RunDirectory(Path(config.Global.output_dir), config.Global.checkpoint_dir)
    first = session.ranks.is_first
    with (
        open_display(first_rank=first, quiet=quiet, silent=silent) as display,
        run if first else nullcontext(),
        fast_convolutions(wanted=config.Global.fast_convolutions),
    ):
        log = begin_run(session, run, display)
        try:
            manager = CheckpointManager(run, session)
            fp32 = keep_baseline(session, manager, log, display)
            batches = session.calibrate(display, run.reconstruction)
            wanted = session.recipe.calibration.steps
            there_were = "" if batches == wanted else f" (all there are; {wanted} were asked for)"
            size = config.DataLoader.Train.sampler.batch_size
            display.message(f"Calibrated on {batches} batches of {size} images{there_were}")
            fidelity = session.fidelity()
            if fidelity.destroyed:  # before anything is evaluated or exported
                display.result(boxed(fidelity.warning(_WHAT_TO_DO)))
            metrics = None
            if session.eval_loader is not None:
                metrics = session.evaluate(display)
                display.message(comparison_table(fp32, metrics))
                display.result(accuracy_line(metrics))
                if log:
                    log.write("eval", 0, **metrics)
            manager.keep_calibrated(metrics)
        finally:
            if log:
                log.close()
        if first:
            Summary(
                folder=str(run.path),
                epochs=0,
                best_top1=metrics["top1"] if metrics else None,
                best_epoch=None,
                last_top1=metrics["top1"] if metrics else None,
                seconds=clock.seconds(),
                stopped_early=False,
                quantized=True,
            ).write()
        display.result(f"Run folder: {run.path}")
    return run.path


def _images(loaders: dict[str, Any], path: Path | None, batch_size: int | None) -> dict[str, Any]:
    """The section of the images to calibrate on."""
    train, evaluation = loaders["Train"], loaders["Eval"]
    shown = (evaluation or train or {}).get("dataset", {}).get("transform_ops")
    if path is None and train is None:
        raise LowbitError(
            "the config has no DataLoader.Train section: give the images to calibrate on with --data-path"
        )
    if shown is None:
        raise LowbitError("the config does not say how images are prepared: give DataLoader.Eval in it")
    split = train or {"sampler": {"batch_size": _BATCH_SIZE}, "loader": evaluation["loader"]}
    dataset = split["dataset"] if path is None else _dataset(path)
    sampler = {"batch_size": batch_size or split["sampler"]["batch_size"], "shuffle": True}
    return {
        "dataset": {**dataset, "transform_ops": shown},
        "sampler": sampler,
        "loader": split["loader"],
    }


def _dataset(path: Path) -> dict[str, Any]:
    if path.suffix == ".txt":
        root = str(path.parent)
        return {"name": "ImageNetDataset", "image_root": root, "cls_label_path": str(path)}
    return {"name": "AutoDataset", "path": str(path), "split": "train"}
