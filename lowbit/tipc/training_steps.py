"""The steps of a train mode: per device and trainer, train, evaluate, export and infer."""

from __future__ import annotations

from dataclasses import dataclass

from lowbit.errors import did_you_mean
from lowbit.tipc.builder import CPU_PROCESSES, Builder
from lowbit.tipc.config import ChainConfig, Trainer
from lowbit.tipc.inference_steps import Model, add_inference
from lowbit.tipc.lines import Field, is_absent, shorten
from lowbit.tipc.step import Step, StepKind
from lowbit.tipc.values import (
    DeviceChoice,
    alternatives,
    cpu_word,
    device_choices,
    is_gpu_word,
    per_mode,
)
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
        "epochs": _epochs(training.epochs, mode),
        "batch_size": _batch_size(build, training.batch_size, mode),
        "pretrained": option(training.pretrained),
        "extra": option(training.extra),
    }
    trainers = _chosen_trainers(build, config)
    devices = device_choices(training.gpu_list)
    for device, use_gpu in zip(devices, _use_gpu(training.use_gpu, devices), strict=True):
        for autocast in _autocasts(training.autocast):
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
    name = build.unique(f"{trainer.name}_gpus_{device.text}_autocast_{shown}_nodes_{device.nodes}", longest=150)
    if not is_absent(use_gpu) and (build.machine.on_cpu or (config.layout == 32 and device.is_cpu)):
        use_gpu = cpu_word(use_gpu)
    folder = f"{build.output}/{name}"
    weights = config.training.weights_name.require("what training leaves, as in train_model_name:latest.pdparams")
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
            # The launcher hands out the cards itself.
            environment={} if device.is_launched and not machine.on_cpu else machine.visible(device),
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
                # Layout 51 has the device first; what layout 32 lets fall stands in the order of its training.
                *((*use_gpu, *extra) if config.layout == 51 else (*extra, *use_gpu)),
            ),
            environment=build.machine.visible(run.device),
            log=f"{run.folder}_eval.log",
            folder=run.folder,
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


def _chosen_trainers(build: Builder, config: ChainConfig) -> tuple[Trainer, ...]:
    """The trainers that the config asks for, without those whose command is null."""
    training, found = config.training, []
    chosen = training.chosen
    chosen.require("a trainer, as in trainer:norm_train")
    known = {trainer.name: trainer for trainer in reversed(training.trainers) if not is_absent(trainer.name)}
    names = alternatives(chosen.value)
    for name in names:
        if name in known:
            trainer = known[name]
        elif config.layout == 32 and known and known.keys() & set(names):
            [only] = training.trainers
            build.note(chosen, f"{name} runs the command of {only.name}, the only one that there is")
            trainer = Trainer(name, only.train, only.export, only.quantized)
        else:
            lines = ", ".join(str(one.train.number) for one in training.trainers)
            raise chosen.error(
                f'expected a trainer that has a command on line {lines}, found "{shorten(name)}"; '
                + (did_you_mean(name, known) if known else "there is none")
            )
        if trainer.train.is_absent:
            build.note(trainer.train, f"{name} has no command and is left out")
        else:
            found.append(trainer)
    return tuple(found)


def _autocasts(field: Field | None) -> tuple[str | None, ...]:
    """The alternatives of layout 51; layout 32 has none, and says in the folder's name whether it is AMP."""
    return (None,) if field is None else alternatives(field.value) or ("null",)


def _use_gpu(field: Field, devices: tuple[DeviceChoice, ...]) -> tuple[str, ...]:
    """The word of line 5 for each device; one word holds for all of them."""
    if field.is_absent:
        return ("",) * len(devices)
    words = alternatives(field.value)
    if len(words) == 1:
        words = words * len(devices)
    if len(words) < len(devices):
        raise field.error(
            f"expected an alternative for each of the {len(devices)} of gpu_list, found {len(words)}"
        )
    for word in words:
        if not is_absent(word):
            is_gpu_word(field, word)
    return words[: len(devices)]


def _epochs(field: Field, mode: str) -> Words:
    entries = per_mode(field)
    if is_absent(field.key) or not entries:
        return ()
    if mode in entries:
        return option(field, entries[mode])
    nearby, value = next(iter(entries.items()))
    for other, candidate in entries.items():  # a mode that trains on as much data has as many epochs
        if other.split("_")[0] == mode.split("_")[0]:
            nearby, value = other, candidate
    raise field.error(
        f"expected an entry for mode {mode}, found {', '.join(entries)}; without one the script's own number of "
        f"epochs would be trained. Write {field.key}:{shorten(field.value)}|{mode}={value} (as {nearby}), or "
        "choose another mode"
    )


def _batch_size(build: Builder, field: Field, mode: str) -> Words:
    entries = per_mode(field)
    if entries and mode not in entries:
        build.note(field, f"{field.key} has no entry for {mode}; the script's own default holds")
    return option(field, entries.get(mode, ""))


def _train_note(device: DeviceChoice, on_cpu: bool) -> str | None:
    if on_cpu and device.is_launched:
        return f"{CPU_PROCESSES} processes on this machine's CPU"
    if on_cpu and not device.is_cpu:
        return "on the CPU"
    if device.addresses:
        return f"to be started on each of {', '.join(device.addresses)}"
    return None
