"""`train.py`: the training script of Paddle's model repositories, as a config in the form of options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lowbit.cli.options import (
    AmpDtypeName,
    AmpLevelName,
    ConfigFile,
    DeviceName,
    Overrides,
    TeacherName,
)
from lowbit.config import Config, validate, with_data_path
from lowbit.config.load import given_options
from lowbit.config.yaml_file import KeyPath
from lowbit.errors import LowbitError


def train(
    context: typer.Context = None,  # type: ignore[assignment]  # Typer gives it, whatever the default is
    config: ConfigFile = None,
    override: Overrides = None,
    data_path: Annotated[
        str, typer.Option(help="A folder or archive whose layout lowbit recognises.")
    ] = "./data",
    model: Annotated[
        str, typer.Option(help="A model's name, or package.module:Class.")
    ] = "mobilenet_v3_small",
    device: DeviceName = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", min=1, help="Images a step and process.")
    ] = 256,
    epochs: Annotated[int, typer.Option(min=1, help="Times through the training data.")] = 90,
    amp_level: AmpLevelName = None,
    amp_dtype: AmpDtypeName = None,
    workers: Annotated[int, typer.Option("--workers", "-j", min=0, help="Threads that decode images.")] = 8,
    opt: Annotated[
        Literal["sgd", "rmsprop", "adamw"], typer.Option(help="The optimizer; sgd is the one with momentum.")
    ] = "sgd",
    lr: Annotated[float, typer.Option(help="Learning rate at the start.")] = 0.1,
    momentum: Annotated[float, typer.Option(help="Of sgd and rmsprop.")] = 0.9,
    weight_decay: Annotated[
        float, typer.Option("--weight-decay", "--wd", help="Pulls the weights towards zero.")
    ] = 1e-4,
    lr_step_size: Annotated[int, typer.Option(min=1, help="Epochs between two cuts of the rate.")] = 30,
    lr_gamma: Annotated[float, typer.Option(help="The factor of such a cut.")] = 0.1,
    print_freq: Annotated[int, typer.Option(min=1, help="Steps between two log lines.")] = 10,
    output_dir: Annotated[Path, typer.Option(help="Where checkpoints and logs go.")] = Path("."),
    resume: Annotated[str | None, typer.Option(help="A checkpoint to continue from, or `auto`.")] = None,
    start_epoch: Annotated[int, typer.Option(min=0, help="The number of the first epoch.")] = 0,
    sync_bn: Annotated[bool, typer.Option("--sync-bn", help="Batch norm over all processes.")] = False,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="Evaluate --pretrained (or --resume) and stop.")
    ] = False,
    pretrained: Annotated[str | None, typer.Option(help="Weights to start from.")] = None,
    auto_augment: Annotated[
        Literal["imagenet", "cifar10", "svhn"] | None, typer.Option(help="AutoAugment's policy.")
    ] = None,
    random_erase: Annotated[
        float, typer.Option(min=0, max=1, help="Probability of blanking a rectangle.")
    ] = 0.0,
    pact_quant: Annotated[bool, typer.Option("--pact_quant", help="Quantization-aware training.")] = False,
    teacher: TeacherName = None,
    num_classes: Annotated[
        int | None, typer.Option(min=1, help="Left out: as many as the data, or the weights, have.")
    ] = None,
    reset_classifier: Annotated[
        bool, typer.Option("--reset-classifier", help="Take weights of another number of classes.")
    ] = False,
    resize_size: Annotated[int, typer.Option(min=1, help="Short side before the validation crop.")] = 256,
    crop_size: Annotated[int, typer.Option(min=1, help="Side of the images that the model sees.")] = 224,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal runs.")] = 0,
    save_steps: Annotated[int, typer.Option(min=0, help="Also save a checkpoint every N steps.")] = 0,
) -> None:
    """Train a model, or evaluate one with --test-only.

    **Examples**

    - `python train.py --data-path ./lite_data --epochs 2 -b 4`
    - `python train.py --test-only --pretrained latest.pdparams --data-path ./lite_data`
    - `python train.py --data-path ./imagenet --amp_level O2 --output-dir runs/small`
    - `python train.py -c ResNet18.yaml -o Global.epochs=2 --data-path ./imagenet` by a config
    """
    given_options(amp_level=amp_level, amp_dtype=amp_dtype)  # an error where one has no effect
    if config is not None:
        _train_by_config(config, override or [], _given_options(context))
        return
    if override:
        raise LowbitError(f"-o {override[0]}: -o changes a config, and there is none: add -c CONFIG")
    normalize: dict[str, Any] = {"NormalizeImage": {}}
    train_ops: list[dict[str, Any]] = [{"RandCropImage": {"size": crop_size}}, {"RandFlipImage": {}}]
    train_ops += [{"AutoAugment": {"policy": auto_augment}}] if auto_augment else []
    train_ops += [normalize, *([{"RandomErasing": {"EPSILON": random_erase}}] if random_erase else [])]
    eval_ops: list[dict[str, Any]] = [
        {"ResizeImage": {"resize_short": resize_size}},
        {"CropImage": {"size": crop_size}},
        normalize,
    ]
    values = {
        "Global": {
            "output_dir": str(output_dir),
            "checkpoint_dir": ".",  # the ecosystem's tools look for latest.pdparams in the folder itself
            "epochs": epochs,
            "start_epoch": start_epoch,
            "device": device,
            "print_batch_step": print_freq,
            "checkpoints": resume,
            "pretrained_model": pretrained,
            "reset_classifier": reset_classifier,
            "sync_bn": sync_bn,
            "image_shape": [3, crop_size, crop_size],
            "seed": seed,
            "save_steps": save_steps,
        },
        "Recipe": {"activation_preprocess_type": "PACT"} if pact_quant else None,
        "Distillation": {"teacher": teacher} if teacher else None,
        "AMP": {"level": amp_level, "dtype": amp_dtype or "fp16"} if amp_level else None,
        "Arch": {"name": model, "class_num": num_classes},
        "Optimizer": {
            "name": _OPTIMIZERS[opt],
            "momentum": momentum,
            "regularizer": {"coeff": weight_decay},
            "lr": {"name": "Step", "learning_rate": lr, "step_size": lr_step_size, "gamma": lr_gamma},
        },
        "DataLoader": {
            "Train": _split(data_path, "train", train_ops, batch_size, workers, shuffle=True),
            "Eval": _split(data_path, "val", eval_ops, batch_size, workers, shuffle=False),
        },
    }
    _run(validate(values, _SOURCES, "train.py"), device, test_only=test_only, pact_quant=pact_quant)


def _run(config: Config, device: str | None, *, test_only: bool, pact_quant: bool) -> None:
    if test_only:
        _test(config, device)
        return
    from lowbit.training.loop import train as run_training

    folder = run_training(config, insist_on_device=device is not None)
    if pact_quant:
        _export_quantized(folder, config.Arch.name)


# With a config, the options that have a setting there. Only those that are given count: not their defaults.
_SETTINGS = {
    "model": "Arch.name",
    "num_classes": "Arch.class_num",
    "device": "Global.device",
    "epochs": "Global.epochs",
    "start_epoch": "Global.start_epoch",
    "print_freq": "Global.print_batch_step",
    "output_dir": "Global.output_dir",
    "resume": "Global.checkpoints",
    "pretrained": "Global.pretrained_model",
    "reset_classifier": "Global.reset_classifier",
    "sync_bn": "Global.sync_bn",
    "seed": "Global.seed",
    "save_steps": "Global.save_steps",
    "batch_size": "DataLoader.Train.sampler.batch_size",
    "workers": "DataLoader.Train.loader.num_workers",
    "lr": "Optimizer.lr.learning_rate",
    "momentum": "Optimizer.momentum",
    "amp_level": "AMP.level",
    "amp_dtype": "AMP.dtype",
    "teacher": "Distillation.teacher",
}
_APART = ("config", "override", "data_path", "test_only", "pact_quant")


def _given_options(context: typer.Context) -> dict[str, Any]:
    """The options of the command line, without the defaults of the others."""
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name).name == "COMMANDLINE"  # type: ignore[union-attr]
    }


def _train_by_config(file: Path, override: list[str], given: dict[str, Any]) -> None:
    from lowbit.training.config_check import read_config

    for name in given:
        if name not in _SETTINGS and name not in _APART:
            option = f"--{name.replace('_', '-')}"
            raise LowbitError(f"{option} has no effect with -c: change the config by -o SECTION.KEY=VALUE")
    options = {
        f"--{name.replace('_', '-')}": (_SETTINGS[name], str(value) if isinstance(value, Path) else value)
        for name, value in given.items()
        if name in _SETTINGS
    }
    if "amp_level" in given:
        options["--amp_level"] = ("AMP.use_amp", True)
    if given.get("pact_quant"):
        options["--pact_quant"] = ("Recipe", {"activation_preprocess_type": "PACT"})
    config = read_config(file, override, options)
    if "checkpoint_dir" not in config.Global.model_fields_set:
        config.Global.checkpoint_dir = "."
    if "data_path" in given:
        config = with_data_path(config, given["data_path"])
    _run(config, given.get("device"), test_only="test_only" in given, pact_quant="pact_quant" in given)


_OPTIMIZERS = {"sgd": "Momentum", "rmsprop": "RMSProp", "adamw": "AdamW"}

# Where a mistake in the config came from: the option that the user gave.
_SOURCES: dict[KeyPath, str] = {
    ("Global", "device"): "--device",
    ("Global", "seed"): "--seed",
    ("Distillation", "teacher"): "--teacher",
    ("Optimizer", "momentum"): "--momentum",
    ("Optimizer", "regularizer", "coeff"): "--weight-decay",
    ("Optimizer", "lr", "learning_rate"): "--lr",
    ("Optimizer", "lr", "gamma"): "--lr-gamma",
}


def _export_quantized(folder: Path, model: str) -> None:
    """Leaves `qat_inference.*` in the run's folder, as the ecosystem's tools expect after --pact_quant."""
    from lowbit.api.runs import to_export
    from lowbit.deploy import export_model
    from lowbit.training.process import join_ranks
    from lowbit.training.trained_model import open_checkpoint

    if join_ranks().is_first:
        files = to_export(open_checkpoint(folder / "latest.lowbit", trust=model))
        export_model(files.model, folder, **files.description, file_name="qat_inference")
        print(f"Quantized model: {folder / 'qat_inference.json'}")


def _split(
    path: str, split: str, ops: list[dict[str, Any]], batch_size: int, workers: int, *, shuffle: bool
) -> dict[str, Any]:
    return {
        "dataset": {"name": "AutoDataset", "path": path, "split": split, "transform_ops": ops},
        "sampler": {"batch_size": batch_size, "shuffle": shuffle},
        "loader": {"num_workers": workers},
    }


def _test(config: Config, device: str | None) -> None:
    from lowbit.api.evaluation import evaluate_trained
    from lowbit.api.runs import validation_images
    from lowbit.training.display import accuracy_line
    from lowbit.training.trained_model import open_checkpoint, open_weights

    settings = config.Global
    if settings.pretrained_model is not None:
        trained = open_weights(config, Path(settings.pretrained_model))
    elif settings.checkpoints is not None:
        auto = settings.checkpoints == "auto"
        path = Path(settings.output_dir if auto else settings.checkpoints)
        trained = open_checkpoint(path, trust=config.Arch.name)
    else:
        raise LowbitError("--test-only needs --pretrained: without weights there is nothing to test")
    print(accuracy_line(evaluate_trained(trained, validation_images(trained), device)))
