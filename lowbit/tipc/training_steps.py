"""The steps of a train mode: per device and trainer, train, evaluate, export and infer."""

from __future__ import annotations

from dataclasses import dataclass

from lowbit.tipc.builder import CPU_PROCESSES, Builder
from lowbit.tipc.config import ChainConfig, Trainer
from lowbit.tipc.inference_steps import Model, add_inference
from lowbit.tipc.lines import is_absent, present
from lowbit.tipc.step import Step, StepKind
from lowbit.tipc.training_settings import autocasts, batch_size, chosen_trainers, epochs, use_gpu_words
from lowbit.tipc.values import DeviceChoice, cpu_word, device_choices
from lowbit.tipc.words import Words, option, option_with, split_words


@dataclass(frozen=True)
class _Run:
    """One way through the chain."""

    name: str
    folder: str
    weights: str
    device: DeviceChoice
    trainer: Trainer
    autocast: str
    use_gpu: str


def add_training(build: Builder, config: ChainConfig, mode: str) -> None:
    """All runs of a train mode."""
    training = config.training
    settings = {
        "epochs": epochs(training.epochs, mode),
        "batch_size": batch_size(build, training.batch_size, mode),
        "pretrained": option(training.pretrained),
        "extra": option(training.extra),
    }
    trainers = chosen_trainers(build, config)
    devices = device_choices(training.gpu_list)
    for device, use_gpu in zip(devices, use_gpu_words(training.use_gpu, devices), strict=True):
        for autocast in autocasts(training.autocast):
            for trainer in trainers:
                run = _run(build, config, device, trainer, autocast, use_gpu)
                _add_run(build, config, run, settings)


def _run(
    build: Builder,
    config: ChainConfig,
    device: DeviceChoice,
    trainer: Trainer,
    autocast: str | None,
    use_gpu: str,
) -> _Run:
    shown = autocast or str(trainer.name == "amp_train")
    name = f"{trainer.name}_gpus_{device.text}_autocast_{shown}_nodes_{device.nodes}"
    name = build.unique(name, longest=150)
    if not is_absent(use_gpu) and (build.machine.on_cpu or (config.layout == 32 and device.is_cpu)):
        use_gpu = cpu_word(use_gpu)
    folder = f"{build.output}/{name}"
    weights = config.training.weights_name.require("what training leaves, as in train_model_name:latest")
    return _Run(name, folder, f"{folder}/{weights}", device, trainer, autocast or "", use_gpu)


def _add_run(build: Builder, config: ChainConfig, run: _Run, settings: dict[str, Words]) -> None:
    training, device, machine = config.training, run.device, build.machine
    use_gpu = option(training.use_gpu, run.use_gpu)
    arguments = settings | {
        "use_gpu": use_gpu,
        "output_dir": option_with(training.output_dir, run.folder),
        "autocast": option(training.autocast, run.autocast) if training.autocast else (),
    }
    order = training.order_on_machines if device.addresses else training.order
    command = split_words(run.trainer.train, run.trainer.train.value)
    train = build.add(
        Step(
            name=f"{run.name}_train",
            kind=StepKind.TRAIN,
            arguments=(
                *build.python,
                *machine.launcher(device),
                *command,
                *(word for key in order for word in arguments[key]),
            ),
            environment=machine.while_training(device),
            log=f"{run.folder}_train.log",
            folder=run.folder,
            leaves=run.weights,
            skipped=machine.why_not(device),
            note=_train_note(device, machine.on_cpu),
            quantized=run.trainer.quantized,
        ),
        training.gpu_list,
    )
    _add_eval(build, config, run, train, use_gpu)
    _add_export(build, config, run, train)


def _add_eval(build: Builder, config: ChainConfig, run: _Run, train: Step, use_gpu: Words) -> None:
    evaluation = config.evaluation
    if evaluation.command.is_absent:
        return
    extra = option(evaluation.extra)
    build.add(
        Step(
            name=f"{run.name}_eval",
            kind=StepKind.EVAL,
            arguments=(
                *build.python,
                *split_words(evaluation.command, evaluation.command.value),
                *option_with(config.training.pretrained, run.weights),
                # Layout 51 has the device first; what the original of layout 32 forgets is as in training.
                *((*use_gpu, *extra) if config.layout == 51 else (*extra, *use_gpu)),
            ),
            environment=build.machine.visible(run.device),
            log=f"{run.folder}_eval.log",
            folder=run.folder,
            weights=run.weights,
            needs=(train.name,),
            quantized=run.trainer.quantized,
        ),
        evaluation.command,
    )


def _add_export(build: Builder, config: ChainConfig, run: _Run, train: Step) -> None:
    command = run.trainer.export
    if command.is_absent:
        return
    export = build.add(
        Step(
            name=f"{run.name}_export",
            kind=StepKind.EXPORT,
            arguments=(
                *build.python,
                *split_words(command, command.value),
                *option_with(config.export.weights, run.weights),
                *option_with(config.export.save, run.folder),
            ),
            environment=build.machine.visible(run.device),
            log=f"{run.folder}_export.log",
            folder=run.folder,
            weights=run.weights,
            image=present(config.inference.train_image.value),
            leaves=_model_folder(config, run),
            needs=(train.name,),
            quantized=run.trainer.quantized,
        ),
        command,
    )
    model = Model(
        _model_folder(config, run), config.inference.train_image.value, run.trainer.quantized, run.device
    )
    add_inference(build, config.inference, model, run.name, (export.name,))


def _model_folder(config: ChainConfig, run: _Run) -> str:
    below = config.export.subfolder
    return run.folder if below is None or below.is_absent else f"{run.folder}/{below.value}"


def _train_note(device: DeviceChoice, on_cpu: bool) -> str | None:
    if on_cpu and device.is_launched:
        return f"{CPU_PROCESSES} processes on this machine's CPU"
    if on_cpu and not device.is_cpu:
        return "on the CPU"
    if device.addresses:
        return f"to be started on each of {', '.join(device.addresses)}"
    return None
