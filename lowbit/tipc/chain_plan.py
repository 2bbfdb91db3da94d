"""Plans the commands of a config's mode: the original's commands, without its defects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lowbit.errors import LowbitError, did_you_mean
from lowbit.tipc.config import ChainConfig, Trainer
from lowbit.tipc.dialects import amp_words
from lowbit.tipc.fields import (
    MODES,
    DeviceChoice,
    Field,
    Words,
    alternatives,
    cpu_word,
    device_choices,
    is_absent,
    is_gpu_word,
    is_misspelt,
    option,
    option_with,
    per_mode,
    shorten,
    split_words,
)
from lowbit.tipc.inference_steps import Model, add_inference, add_whole_infer, image_from_root, local_path
from lowbit.tipc.steps import CPU_PROCESSES, Builder, ChainPlan, Machine, Step, StepKind


def make_plan(
    config: ChainConfig, mode: str, *, machine: Machine | None = None, python: str | None = None
) -> ChainPlan:
    """The steps of a mode, in the original's order.

    It differs from the original where that is wrong: data, device and image are passed on, a mode without
    epochs is an error, every inference has its own log, and no command needs a shell.

    >>> plan = make_plan(read_config(path), "lite_train_lite_infer")  # doctest: +SKIP
    >>> plan.steps[0].arguments  # doctest: +SKIP
    ('python3.7', 'train.py', '--pact_quant', ...)
    """
    check_mode(mode)
    output = output_folder(config, mode)
    interpreter = config.python
    if python is not None:
        interpreter = Field("--python", 1, "python", python)
    interpreter.require("an interpreter, as in python:python3")
    build = Builder(machine or Machine(), split_words(interpreter, interpreter.value), output)
    flag = config.released.quantized
    if flag is not None:
        for word in filter(is_misspelt, alternatives(flag.value)):
            build.note(flag, f'"{shorten(word)}" is read as False')
    if mode == "whole_infer":
        add_whole_infer(build, config)
    else:
        add_training(build, config, mode)
    return ChainPlan(
        config=config.file.source,
        layout=config.layout,
        dialect=config.dialect.name,
        model_name=config.model_name.value,
        mode=mode,
        root=find_root(Path(config.file.source)),
        output=output,
        steps=tuple(build.steps),
        notes=tuple(build.notes),
    )


def output_folder(config: ChainConfig, mode: str) -> str:
    """The folder of a mode's logs, runs and results, relative to the repository's root."""
    return f"./test_tipc/output/{_model_name(config.model_name)}/{mode}"


def check_mode(mode: str) -> None:
    """Raise an error that names the nearest mode if this is none."""
    if mode not in MODES:
        raise LowbitError(f'unknown mode "{shorten(mode)}", {did_you_mean(mode, MODES)}')


def find_root(config: Path) -> Path:
    """The repository of a config: the folder above `test_tipc`, or else the current one.

    >>> find_root(Path("/home/me/ocr/test_tipc/configs/det/train_infer_python.txt")).as_posix()
    '/home/me/ocr'
    """
    for folder in config.absolute().parents:
        if folder.name == "test_tipc":
            return folder.parent
    return Path.cwd()


def _model_name(field: Field) -> str:
    name = field.require("a model's name, as in model_name:resnet18")
    if name.startswith("/") or ".." in name.split("/"):
        raise field.error(f'expected a name, which becomes that of a folder, found "{shorten(name)}"')
    return name


@dataclass(frozen=True)
class _Run:
    """One run of the chain: a device, a trainer, a precision."""

    name: str
    folder: str
    weights: str
    device: DeviceChoice
    trainer: Trainer
    autocast: str
    use_gpu: str


def add_training(build: Builder, config: ChainConfig, mode: str) -> None:
    """Add all runs of a train mode."""
    training = config.training
    settings = {
        "epochs": epochs(build, training.epochs, mode, borrow=config.dialect.is_paddleclas),
        "batch_size": batch_size(build, training.batch_size, mode),
        "pretrained": option(training.pretrained, local_path(build, training.pretrained)),
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
    on_cpu = device.is_cpu and (config.layout == 32 or config.dialect.is_paddleclas)
    if not is_absent(use_gpu) and (build.machine.on_cpu or on_cpu):
        use_gpu = cpu_word(use_gpu)
    folder = f"{build.output}/{name}"
    weights = config.training.weights_name.require("what training leaves, as in train_model_name:latest")
    weights = f"{config.dialect.weights_folder(folder, config.model_name.value)}/{weights}"
    return _Run(name, folder, weights, device, trainer, autocast or "", use_gpu)


def _add_run(build: Builder, config: ChainConfig, run: _Run, settings: dict[str, Words]) -> None:
    training, device, machine = config.training, run.device, build.machine
    use_gpu = option(training.use_gpu, run.use_gpu)
    arguments = settings | {
        "use_gpu": use_gpu,
        "output_dir": option_with(training.output_dir, run.folder),
        "autocast": _autocast(build, config, run),
    }
    dialect = config.dialect
    order = training.order_on_machines if device.addresses else training.order
    command = split_words(run.trainer.train, run.trainer.train.value)
    train = build.add(
        Step(
            name=f"{run.name}_train",
            kind=StepKind.TRAIN,
            arguments=(
                *build.python,
                *machine.launcher(device, dialect.cards_option),
                *command,
                *(word for key in order for word in arguments[key]),
                *dialect.train_words,
                *(dialect.launched_words if device.is_launched else ()),
            ),
            environment=machine.while_training(device),
            log=f"{run.folder}_train.log",
            folder=run.folder,
            leaves=run.weights,
            skipped=machine.missing(device),
            note=_train_note(device, machine.on_cpu),
            quantized=run.trainer.quantized,
        ),
        training.gpu_list,
    )
    _add_eval(build, config, run, train, use_gpu)
    _add_export(build, config, run, train)


def _autocast(build: Builder, config: ChainConfig, run: _Run) -> Words:
    """The words for mixed precision. PaddleClas's runner turns it off even for amp_train, unless line 6 says
    amp: then its own test of mixed precision trains in fp32."""
    field = config.training.autocast
    if not config.dialect.is_paddleclas:
        return option(field, run.autocast) if field else ()
    if run.trainer.name == "amp_train" and run.autocast != "amp":
        if field is not None:
            build.note(field, "amp_train trains in mixed precision; the original switches it off")
        return ("-o", "AMP.use_amp=True")
    return amp_words(run.autocast)


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
            image=image_from_root(config, config.inference.train_image),
            leaves=_model_folder(config, run),
            needs=(train.name,),
            quantized=run.trainer.quantized,
        ),
        command,
    )
    model = Model(
        _model_folder(config, run), config.inference.train_image.value, run.trainer.quantized, run.device
    )
    add_inference(build, config, model, run.name, (export.name,))


def _model_folder(config: ChainConfig, run: _Run) -> str:
    below = config.export.subfolder
    if below is None or below.is_absent or "://" in below.value:
        return run.folder
    return f"{run.folder}/{below.value}"


def _train_note(device: DeviceChoice, on_cpu: bool) -> str | None:
    if on_cpu and device.is_launched:
        return f"{CPU_PROCESSES} processes on this machine's CPU"
    if on_cpu and not device.is_cpu:
        return "on the CPU"
    if device.addresses:
        return f"to be started on each of {', '.join(device.addresses)}"
    return None


def chosen_trainers(build: Builder, config: ChainConfig) -> tuple[Trainer, ...]:
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


def autocasts(field: Field | None) -> tuple[str | None, ...]:
    """The alternatives of layout 51. Layout 32 has none."""
    return (None,) if field is None else alternatives(field.value) or ("null",)


def use_gpu_words(field: Field, devices: tuple[DeviceChoice, ...]) -> tuple[str, ...]:
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


def epochs(build: Builder, field: Field, mode: str, *, borrow: bool = False) -> Words:
    """The epochs of a mode. With `borrow`, lite data is trained as often for either kind of inference."""
    entries = per_mode(field)
    if is_absent(field.key) or not entries:
        return ()
    if mode in entries:
        return option(field, entries[mode])
    lite = "lite_train_lite_infer"
    if borrow and mode == "lite_train_whole_infer" and lite in entries:
        build.note(field, f"no entry for {mode}: the {entries[lite]} epochs of {lite} are trained")
        return option(field, entries[lite])
    nearby, value = next(iter(entries.items()))
    for other, candidate in entries.items():  # a mode that trains on as much data has as many epochs
        if other.split("_")[0] == mode.split("_")[0]:
            nearby, value = other, candidate
    raise field.error(
        f"expected an entry for mode {mode}, found {', '.join(map(shorten, entries))}; without one the "
        f"script's own number of epochs would be trained. Add |{mode}={value} (as for {nearby}), or choose "
        "another mode"
    )


def batch_size(build: Builder, field: Field, mode: str) -> Words:
    entries = per_mode(field)
    if entries and mode not in entries:
        build.note(field, f"{field.key} has no entry for {mode}; the script's own default holds")
    return option(field, entries.get(mode, ""))
